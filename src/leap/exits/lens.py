"""The lens: a linear map a layer, from the layer's pooled vector to the final one.

For a checkpoint that cannot be retrained: an exited vector is mapped to where the last layer would have put
it. The idea is the tuned lens' (Belrose et al. 2023, arXiv 2303.08112), on pooled vectors.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leap.exits.bound_files import load_bound, save_bound

FILE = "lens.safetensors"
MADE_BY = "`leap calibrate MODEL --sentences FILE --lens` fits it"


@dataclass(frozen=True)
class Lens:
    """The maps of layers 1 to L - 1; the last layer's is the identity and not stored.

    maps: [L - 1, D, D] float32; a row vector p_l becomes p_l @ maps[l - 1], near p_L / |p_L|.
    """

    maps: Tensor

    def at_exits(self, vectors: Tensor, exits: Tensor) -> Tensor:
        """Each row mapped by its own layer's map; [B, D] float32 and [B] int64 to [B, D]."""
        mapped = vectors.clone()
        for layer in sorted(set(exits.tolist())):
            if layer <= len(self.maps):
                rows = (exits == layer).to(vectors.device)
                mapped[rows] = vectors[rows] @ self.maps[layer - 1]
        return mapped

    def mapped(self, pooled: Tensor) -> Tensor:
        """All layers through their maps, [L + 1, N, D] to the same; layers 0 and L stay as they are."""
        return torch.cat([pooled[:1], pooled[1:-1] @ self.maps, pooled[-1:]])

    def to(self, device: torch.device) -> "Lens":
        """The same lens on another device."""
        return Lens(self.maps.to(device))

    def save(self, folder: Path) -> None:
        """Writes lens.safetensors beside the folder's weights."""
        save_bound({"maps": self.maps}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, depth: int, width: int) -> "Lens":
        """Reads the folder's lens.

        Raises:
            UserError: there is none, or it is of other weights.
        """
        return cls(**load_bound(folder / FILE, {"maps": (depth - 1, width, width)}, MADE_BY))
