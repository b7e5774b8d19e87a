"""A teacher as the trainer sees it, cached or online."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from leap.models.batches import Batch

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TeacherTokens:
    """Tokens for an online teacher.

    places: [B] int64, for every row of the student's batch its row among them.
    """

    batch: Batch
    places: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "TeacherTokens":
        return TeacherTokens(self.batch.map(change), change(self.places))


TeacherInput = Tensor | TeacherTokens


class Teacher(Protocol):
    """Pooled teacher layers of the training sentences.

    layers: the layers given, ascending, the last one the teacher's last; 0 is the embedding layer.
    width: D_t.
    packs: whether `inputs` can be of fixed shapes.
    """

    layers: list[int]
    width: int
    packs: bool

    def reserve(self, batches: Iterable[Rows]) -> None:
        """Learn the batches to come, so that `inputs` can have the same shapes for each of them."""

    def inputs(self, rows: Rows, fixed: bool) -> TeacherInput:
        """Return what the vectors of `rows` are made from, on the host.

        It has the same shapes each time if `fixed`, which `reserve` must come before.
        """

    def compile(self) -> None:
        """Compile what `vectors` computes, for a GPU."""

    def vectors(self, given: TeacherInput) -> Tensor:
        """Return the vectors from what `inputs` gave, on the device: [S, B, D_t] float32."""
