"""Ragged batches: no padding anywhere.

Rows are ordered by length and their tokens lie one after the other, so the matrix products see no padding;
attention runs once per distinct length, without a mask. A row's numbers cannot depend on its neighbours.
On a GPU the rows' offsets take the groups' place (`leap.models.kernels.varlen`): one launch whatever the lengths.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby

import torch
from torch import Tensor

from leap.models.kernels import varlen


@dataclass(frozen=True)
class Group:
    """Rows of one length: `rows` sentences of `length` tokens, from token `start` on."""

    start: int
    rows: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length


@dataclass(frozen=True)
class Batch:
    """Sentences in ascending length.

    ids, positions: [N] int64, the tokens of all rows one after the other and their places in their row.
    groups: the runs of equal length, in order; none where a batch of fixed size is made for a GPU.
    offsets: [B + 1] int32 on a GPU, where each row starts and the last ends; elsewhere None.
    longest: with offsets, an upper bound of the rows' lengths.
    bias: what an encoder adds to attention's scores, `leap.models.relative_bias`; None where it adds nothing.
    """

    ids: Tensor
    positions: Tensor
    groups: tuple[Group, ...]
    offsets: Tensor | None = None
    longest: int = 0
    bias: Tensor | None = None

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups) if self.groups else len(self._offsets()) - 1

    def to(self, device: torch.device) -> "Batch":
        ids = self.ids.to(device, non_blocking=True)
        positions = self.positions.to(device, non_blocking=True)
        if not varlen.available(device):
            return Batch(ids, positions, self.groups)
        offsets = self._offsets().to(device, non_blocking=True)
        longest = self.longest or max(group.length for group in self.groups)
        return Batch(ids, positions, self.groups, offsets, longest)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        offsets = None if self.offsets is None else change(self.offsets)
        return Batch(change(self.ids), change(self.positions), self.groups, offsets, self.longest)

    def _offsets(self) -> Tensor:
        if self.offsets is not None:
            return self.offsets
        starts = [start for group in self.groups for start in range(group.start, group.stop, group.length)]
        return torch.tensor([*starts, self.groups[-1].stop], dtype=torch.int32)

    @cached_property
    def lengths(self) -> Tensor:
        """Return the tokens of each row, [B] int64 on the CPU, ascending."""
        rows = torch.tensor([(group.length, group.rows) for group in self.groups])
        return rows[:, 0].repeat_interleave(rows[:, 1])

    def keep(self, kept: Tensor, states: Tensor) -> tuple["Batch", Tensor]:
        """Return the rows to keep ([B] bool on the CPU), and their tokens' hidden states, of [N, D]."""
        index = kept.repeat_interleave(self.lengths).nonzero().squeeze(1).to(states.device)
        batch = Batch(self.ids[index], self.positions[index], grouped(self.lengths[kept].tolist()))
        return batch.to(index.device), states[index]


def grouped(lengths: Sequence[int]) -> tuple[Group, ...]:
    """Return the runs of equal length among ascending lengths."""
    groups = []
    start = 0
    for length, run in groupby(lengths):
        groups.append(Group(start, sum(1 for _ in run), length))
        start = groups[-1].stop
    return tuple(groups)


def pack(token_ids: Sequence[Sequence[int]]) -> Batch:
    """Pack rows that are already in ascending length; ValueError where they are not, or one is empty."""
    lengths = [len(ids) for ids in token_ids]
    if not lengths or min(lengths) == 0 or lengths != sorted(lengths):
        raise ValueError("rows must be non-empty and in ascending length")
    ids = torch.tensor(list(chain.from_iterable(token_ids)), dtype=torch.int64)
    groups = grouped(lengths)
    positions = torch.cat([torch.arange(group.length).repeat(group.rows) for group in groups])
    return Batch(ids, positions, groups)


def without_tokens(rows: int) -> Batch:
    """Return rows that have no tokens: nothing can be computed of them."""
    nothing = torch.empty(0, dtype=torch.int64)
    return Batch(nothing, nothing, (Group(0, rows, 0),))


def by_length(token_ids: Sequence[Sequence[int]], batch_size: int) -> Iterator[tuple[list[int], Batch]]:
    """Yield the rows' indices and batches of rows alike in length, the longest first: memory peaks at once."""
    order = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))
    for start in reversed(range(0, len(order), batch_size)):
        rows = order[start : start + batch_size]
        yield rows, pack([token_ids[row] for row in rows])
