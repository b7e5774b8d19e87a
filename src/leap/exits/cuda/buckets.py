"""Buffers of fixed size for the graphed path: a batch of any shape lies in the next larger bucket.

A bucket also has smaller levels, into which the rows move that stay while others leave.
"""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import torch
from torch import Tensor

from leap.models.batches import Batch, grouped
from leap.models.kernels.varlen import LONGEST_TILE, TILES
from leap.models.packed_encoder import Encoder

# What a flag holds: rows that stay above, their tokens below.
TOKEN_BITS = 17
ROW_BITS = 13
# Of a counter: what of it says that any row stays.
STAYING = 2 ** (ROW_BITS + TOKEN_BITS) - 1
MOST_ROWS = 2048
MOST_TOKENS = 2**15
# Sizes of buckets an octave of tokens: at most a twelfth of a large batch is idle.
STEPS = 8
LEVELS = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8)
# No level is smaller: products of fewer tokens take no less time.
LEAST_TOKENS = 64


@dataclass(frozen=True)
class Shape:
    """The size of a bucket: most rows and tokens, the longest row's bound, and pooled vectors held a row."""

    rows: int
    tokens: int
    longest: int
    slots: int

    def levels(self) -> tuple["Shape", ...]:
        sizes = [self]
        for part in LEVELS[1:]:
            rows, tokens = ceil(self.rows * part), 16 * ceil(self.tokens * part / 16)
            if tokens >= LEAST_TOKENS and rows < sizes[-1].rows and tokens < sizes[-1].tokens:
                sizes.append(Shape(rows, tokens, self.longest, self.slots))
        return tuple(sizes)


def shape_of(rows: int, tokens: int, longest: int, slots: int) -> Shape:
    """Return the smallest bucket that holds a batch; raise ValueError where none does."""
    if rows > MOST_ROWS or tokens > MOST_TOKENS or longest > LONGEST_TILE:
        raise ValueError(f"{rows} rows of up to {longest} tokens, {tokens} in all, fit no bucket")
    step = 2.0 ** (ceil(log2(tokens) * STEPS - 1e-9) / STEPS)
    return Shape(
        2 ** ceil(log2(rows)),
        16 * ceil(max(step, LEAST_TOKENS) / 16 - 1e-9),
        next(tile for tile in TILES if tile >= longest),
        slots,
    )


class Level:
    """The buffers of one size.

    numbers: int32, all that a batch brings along; its views are offsets [rows + 1], left [rows] (0 while a
        row is there, the layer that it left at, -1 for none), names [rows] (a row's number in the batch), ids
        and positions [tokens].
    states: [tokens, D].
    recent: [slots, rows, D] float32, the last pooled vectors; layer l's in slot l modulo slots.
    """

    def __init__(self, shape: Shape, encoder: Encoder) -> None:
        weight, width = encoder.words.weight, encoder.config.width
        self.shape = shape
        rows, tokens = shape.rows, shape.tokens
        self.numbers = torch.zeros(sum(rooms(shape)), dtype=torch.int32, device=weight.device)
        offsets, left, names, self.ids, self.positions = torch.split(self.numbers, rooms(shape))
        self.offsets, self.left, self.names = offsets[: rows + 1], left[:rows], names[:rows]
        self.states = torch.zeros(tokens, width, dtype=weight.dtype, device=weight.device)
        self.recent = torch.zeros(shape.slots, rows, width, device=weight.device)

    def batch(self) -> Batch:
        """Build the encoder's input: all tokens on a GPU, idle ones at the end; elsewhere those of rows."""
        if self.numbers.is_cuda:
            return Batch(self.ids, self.positions, (), self.offsets, self.shape.longest)
        lengths = [length for length in self.offsets.diff().tolist() if length]
        tokens = sum(lengths)
        return Batch(self.ids[:tokens].long(), self.positions[:tokens].long(), grouped(lengths))


class Bucket:
    """A shape's levels, and what its rows leave behind.

    vectors, exits: [rows, D] float32 and [rows] int64, by a row's number in the batch.
    thresholds: [L + 1] float32. counters: [L + 1] int64, on the device. epoch: [1] int64, the run's number.
    flags: [L + 1] int64 in memory that the host and the device see: epoch, rows and tokens that stay.
    """

    def __init__(self, shape: Shape, encoder: Encoder) -> None:
        device, depth = encoder.words.weight.device, encoder.config.layers
        self.shape = shape
        self.levels = [Level(size, encoder) for size in shape.levels()]
        # In one piece of memory: one copy takes both away.
        self._answers = torch.zeros(answers_start(shape) + shape.rows * encoder.config.width, device=device)
        self.vectors, self.exits = self._split(self._answers)
        self.thresholds = torch.full((depth + 1,), torch.inf, device=device)
        self.counters = torch.zeros(depth + 1, dtype=torch.int64, device=device)
        self.epoch = torch.zeros(1, dtype=torch.int64, device=device)
        self.flags = torch.zeros(depth + 1, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.seen = self.flags.numpy()
        self.runs = 0
        self.thresholds_of: tuple[float, ...] = ()

    def copy_answers(self, rows: int) -> tuple[Tensor, Tensor]:
        """Copy what the first rows left behind, vectors and exits: the next run overwrites it."""
        vectors, exits = self._split(self._answers.clone())
        return vectors[:rows], exits[:rows]

    def _split(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        start = answers_start(self.shape)
        vectors = answers[start:].view(self.shape.rows, -1)
        return vectors, answers[:start].view(torch.int64)[: self.shape.rows]

    def read_flag(self, layer: int) -> tuple[int, int] | None:
        """Rows and tokens that stay after a layer of this run; None while it is not known yet."""
        flag = int(self.seen[layer])
        if flag >> (ROW_BITS + TOKEN_BITS) != self.runs:
            return None
        return flag >> TOKEN_BITS & (2**ROW_BITS - 1), flag & (2**TOKEN_BITS - 1)


def answers_start(shape: Shape) -> int:
    """Return the float32 numbers that the exits, int64, take: a multiple of four, for the vectors' alignment."""
    return 4 * ceil(shape.rows / 2)


def rooms(shape: Shape) -> list[int]:
    """Return how many numbers each part of `Level.numbers` takes: multiples of four, for alignment."""
    return [4 * ceil(size / 4) for size in (shape.rows + 1, shape.rows, shape.rows)] + [shape.tokens] * 2


def numbers_of(batch: Batch, shape: Shape) -> Tensor:
    """Return a batch as `Level.numbers` of a bucket, on the batch's device."""
    lengths = batch.lengths.numpy()
    rows, tokens = len(lengths), len(batch.ids)
    offsets, left, names = (np.zeros(size, dtype=np.int32) for size in rooms(shape)[:3])
    offsets[1:] = tokens
    offsets[1 : rows + 1] = lengths.cumsum()
    left[rows:] = -1
    names[:rows] = np.arange(rows)
    head = torch.from_numpy(np.concatenate([offsets, left, names])).to(batch.ids.device, non_blocking=True)
    idle = head.new_zeros(shape.tokens - tokens)
    return torch.cat([head, batch.ids.int(), idle, batch.positions.int(), idle])
