"""The interface of an encoder's layers: packed or by transformers, what looks at them is the same.

An encoder's `walk(batch, visit)` computes layer by layer and shows each one to `visit`, which may pool it and says
who goes on; rows that do not are not computed any further, and when none is left no later layer is.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from leap.models.batches import Batch

# The number of the layer, 0 being the embeddings, and what gives its pooled vectors, [b, D] float32, of the rows
# still there. The answer: None if all go on, else [b] bool on the CPU, true for those that do.
Visit = Callable[[int, Callable[[], Tensor]], Tensor | None]

NOBODY = torch.zeros(0, dtype=torch.bool)


class Shape(Protocol):
    """The sizes of any encoder: L, D, rows of the table of words, the id that fills rows, the longest row."""

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def pad_token(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...


class Walkable(Protocol):
    """An encoder whose layers can be read, and left, one by one."""

    @property
    def config(self) -> Shape: ...

    @property
    def pooling(self) -> str: ...

    @property
    def packs(self) -> bool:
        """Tell whether it computes packed batches without groups, on a GPU in half precision."""

    @property
    def layers(self) -> Iterable[nn.Module]: ...

    @property
    def weight(self) -> Tensor:
        """Return a parameter that says where the model lies and in what precision."""

    def walk(self, batch: Batch, visit: Visit) -> None:
        """Compute layer by layer, as far as `visit` lets rows go on."""

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the pooled vectors of every layer, [L + 1, B, D] float32, not normalised."""

    def to(self, *args: Any) -> Any: ...
