"""Ragged batches: no padding anywhere.

Rows are ordered by length and their tokens lie one after the other, so the matrix products see no padding;
attention runs once per distinct length, without a mask. A row's numbers cannot depend on its neighbours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Rows of one length: `rows` sentences of `length` tokens, from token `start` on."""

    start: int
    rows: int
    length: int

    @property
    def stop(self) -> int:
        """The token after the last one."""
        return self.start + self.rows * self.length


@dataclass(frozen=True)
class Batch:
    """Sentences in ascending length.

    ids, positions: [N] int64, the tokens of all rows one after the other and their places in their row.
    groups: the runs of equal length, in order.
    """

    ids: Tensor
    positions: Tensor
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        """How many sentences."""
        return sum(group.rows for group in self.groups)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(
            self.ids.to(device, non_blocking=True), self.positions.to(device, non_blocking=True), self.groups
        )

    def keep(self, kept: Sequence[bool], states: Tensor) -> tuple["Batch", Tensor]:
        """The rows to keep, and their token states.

        Args:
            kept: one entry a row.
            states: [N, D], the tokens' hidden states.
        """
        tokens = torch.zeros(len(self.ids), dtype=torch.bool)
        lengths = []
        row = 0
        for group in self.groups:
            for start in range(group.start, group.stop, group.length):
                if kept[row]:
                    tokens[start : start + group.length] = True
                    lengths.append(group.length)
                row += 1
        index = tokens.nonzero().squeeze(1).to(states.device)
        return Batch(self.ids[index], self.positions[index], grouped(lengths)), states[index]


def grouped(lengths: Sequence[int]) -> tuple[Group, ...]:
    """The runs of equal length among ascending lengths."""
    groups = []
    start = 0
    for length, run in groupby(lengths):
        groups.append(Group(start, sum(1 for _ in run), length))
        start = groups[-1].stop
    return tuple(groups)


def row_lengths(batch: Batch) -> list[int]:
    """Each row's tokens, in the batch's order."""
    return [group.length for group in batch.groups for _ in range(group.rows)]


def pack(token_ids: Sequence[Sequence[int]]) -> Batch:
    """Packs rows that are already in ascending length.

    Raises:
        ValueError: a row is empty or shorter than the one before it.
    """
    lengths = [len(ids) for ids in token_ids]
    if not lengths or min(lengths) == 0 or lengths != sorted(lengths):
        raise ValueError("rows must be non-empty and in ascending length")
    ids = torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int64)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return Batch(ids, positions, grouped(lengths))


def by_length(token_ids: Sequence[Sequence[int]], batch_size: int) -> Iterator[tuple[list[int], Batch]]:
    """Batches of rows alike in length, the longest first, so that memory peaks at once.

    Yields:
        The rows' indices, in the batch's order, and the batch.
    """
    order = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))
    for start in reversed(range(0, len(order), batch_size)):
        rows = order[start : start + batch_size]
        yield rows, pack([token_ids[row] for row in rows])
