"""Exit heads: a linear map a layer, from the layer's pooled vector to the vector that an exit there returns.

A layer's vector need not be the answer itself, only lead to it. Heads are trained with the student (`loss.heads`),
or fitted afterwards by ridge regression, for a checkpoint that cannot be retrained (`leap calibrate --heads`; the
tuned lens' idea, Belrose et al. 2023, arXiv 2303.08112, on pooled vectors). They are part of the model: a folder
that holds them has every exited vector mapped. Exit rules compare the layers' own vectors, before the heads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leap.models.bound_files import load_bound, save_bound
from leap.models.kernels.varlen import available

FILE = "heads.safetensors"
# Up to so many rows on a GPU are mapped by one kernel, which has no gradient; more, by a product a layer.
KERNEL_ROWS = 64
# Of a map, what one of the kernel's programs holds at once: 32 loads a thread that do not wait for each other.
INPUTS, OUTPUTS = 128, 32
MADE_BY = (
    "train the variant again with `loss.heads`, or `leap calibrate MODEL --sentences FILE --heads` fits heads"
)


@dataclass(frozen=True)
class ExitHeads:
    """The maps of layers 1 to L - 1; the last layer's is the identity and not stored.

    maps: [L - 1, D, D] float32; a row vector p_l becomes p_l @ maps[l - 1].
    """

    maps: Tensor

    def at_exits(self, vectors: Tensor, exits: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Map each row by its own layer's map; [B, D] float32 and [B] int64 to [B, D].

        Args:
            vectors: pooled, on the maps' device.
            exits: layers counted from 1, on the same device or on the CPU.
            layers: all layers at which rows may have left, where that is known beforehand: a GPU is then
                not waited for. If None, they are read from `exits`.
        """
        layers = sorted(set(exits.tolist())) if layers is None else layers
        if len(layers) == 1:  # a fixed layer, or one sentence: nothing to sort out
            return vectors if layers[0] > len(self.maps) else vectors @ self.maps[layers[0] - 1]
        exits = exits.to(vectors.device, non_blocking=True)
        if available(vectors.device) and len(vectors) <= KERNEL_ROWS and not torch.is_grad_enabled():
            return self.by_kernel(vectors, exits)
        mapped = vectors
        for layer in layers:
            if layer <= len(self.maps):
                mapped = torch.where((exits == layer)[:, None], vectors @ self.maps[layer - 1], mapped)
        return mapped

    def by_kernel(self, vectors: Tensor, exits: Tensor) -> Tensor:
        """Map as `at_exits` does, in one launch; all on a device that Triton compiles for."""
        from leap.models.kernels.head_kernels import map_rows  # Triton comes with PyTorch's CUDA builds only

        vectors = vectors.contiguous()
        mapped, (rows, width) = torch.empty_like(vectors), vectors.shape
        with torch.cuda.device_of(vectors):  # type: ignore[no-untyped-call]
            map_rows[(rows, math.ceil(width / OUTPUTS))](
                vectors, exits, self.maps, mapped, len(self.maps),
                D=width, INPUTS=INPUTS, OUTPUTS=OUTPUTS, num_warps=4,
            )  # fmt: skip
        return mapped

    def mapped(self, pooled: Tensor) -> Tensor:
        """Map all layers, [L + 1, N, D] to the same; layers 0 and L stay as they are."""
        return torch.cat([pooled[:1], pooled[1:-1] @ self.maps, pooled[-1:]])

    def to(self, device: torch.device) -> "ExitHeads":
        return ExitHeads(self.maps.to(device))

    def save(self, folder: Path) -> None:
        """Write heads.safetensors next to the folder's weights, bound to them by their checksum."""
        save_bound({"maps": self.maps}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, depth: int, width: int) -> "ExitHeads | None":
        """Read the folder's heads, None where it has none; refuse damaged ones, and those of other weights."""
        if not (folder / FILE).exists():
            return None
        return cls(**load_bound(folder / FILE, {"maps": (depth - 1, width, width)}, MADE_BY))
