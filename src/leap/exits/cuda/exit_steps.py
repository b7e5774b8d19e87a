"""The graphed path's two steps between layers: the exit test, and moving the rows that stay.

On a GPU each is one kernel (`leap.exits.cuda.exit_kernels`); elsewhere the reference implementation.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.cuda.buckets import ROW_BITS, STAYING, TOKEN_BITS, Bucket, Level
from leap.models.kernels import varlen

POOL, TEST, LAST = 1, 2, 3
# Rows up to so many tokens are read by four warps.
SHORT = 32


def exit_step(bucket: Bucket, level: Level, states: Tensor, layer: int, patience: int, kind: int) -> None:
    """Pool a layer for the rows that are there; they may leave.

    Args:
        bucket: takes the vectors and exits of the rows that leave, and after a test the number that stay.
        level: where the rows lie; takes the pooled vectors.
        states: [tokens, D], the layer's output.
        layer: its number.
        patience: k of the comparison.
        kind: POOL, TEST (rows that reach the layer's threshold leave) or LAST (all leave).
    """
    slots = level.shape.slots
    now, before = layer % slots, (layer - patience) % slots
    if not states.is_cuda:
        _exit_slowly(bucket, level, states, layer, before, now, kind)
        return
    from leap.exits.cuda.exit_kernels import exit_test  # Triton comes with PyTorch's CUDA builds only

    launch_exit_test(exit_test, bucket, level, states, layer, before, now, kind)


def launch_exit_test(
    kernel: object, bucket: Bucket, level: Level, states: Tensor, layer: int, before: int, now: int, kind: int
) -> None:
    rows, width = level.shape.rows, states.shape[1]
    block = varlen.power_of_two(width)
    # Of long rows, a program holds 64 numbers a thread in sixteen warps: few loads that wait for one another.
    tokens, warps = (16, 4) if level.shape.longest <= SHORT else (min(64, 2**15 // block), 16)
    kernel[(rows,)](  # type: ignore[index]
        states, level.offsets, level.left, level.names, level.recent, bucket.vectors, bucket.exits,
        bucket.thresholds, bucket.counters, bucket.flags, bucket.epoch, layer, before, now, rows,
        TEST=kind == TEST, LAST=kind == LAST, D=width, BLOCK=block, TOKENS=tokens,
        ROW_ONE=2**TOKEN_BITS, ALL=STAYING, num_warps=warps,
    )  # fmt: skip


def move_step(source: Level, target: Level) -> None:
    """Move the rows that are there, in order, to the front of a level that holds them."""
    if not source.numbers.is_cuda:
        _move_slowly(source, target)
        return
    from leap.exits.cuda.exit_kernels import compact

    launch_compact(compact, source, target)


def launch_compact(kernel: object, source: Level, target: Level) -> None:
    rows, width = source.shape.rows, source.states.shape[1]
    kernel[(rows + 1,)](  # type: ignore[index]
        source.states, source.offsets, source.left, source.names, source.recent,
        target.states, target.offsets, target.left, target.names, target.recent,
        rows, target.shape.rows, SLOTS=source.shape.slots, D=width, BLOCK=varlen.power_of_two(width),
        BLOCK_ROWS=varlen.power_of_two(rows + 1), num_warps=4,
    )  # fmt: skip


def _exit_slowly(
    bucket: Bucket, level: Level, states: Tensor, layer: int, before: int, now: int, kind: int
) -> None:
    there = (level.left == 0).nonzero().squeeze(1)
    ends = level.offsets.tolist()
    means = states.new_zeros(len(there), states.shape[1], dtype=torch.float32)
    for place, row in enumerate(there.tolist()):
        means[place] = states[ends[row] : ends[row + 1]].mean(0, dtype=torch.float32)
    level.recent[now, there] = means
    if kind == POOL:
        return
    leaves = torch.ones(len(there), dtype=torch.bool)
    if kind == TEST:
        cosine = F.cosine_similarity(means, level.recent[before, there], dim=-1)
        leaves = cosine >= bucket.thresholds[layer]
    names = level.names[there[leaves]].long()
    bucket.vectors[names], bucket.exits[names] = means[leaves], layer
    level.left[there[leaves]] = layer
    if kind == TEST:
        stays = there[~leaves].tolist()
        tokens = sum(ends[row + 1] - ends[row] for row in stays)
        flag = (int(bucket.epoch) << ROW_BITS | len(stays)) << TOKEN_BITS | tokens
        bucket.flags[layer] = flag


def _move_slowly(source: Level, target: Level) -> None:
    stays = (source.left == 0).nonzero().squeeze(1)
    rows, ends = len(stays), source.offsets.tolist()
    parts = [source.states[ends[row] : ends[row + 1]] for row in stays.tolist()]
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    tokens = int(lengths.sum())
    if parts:
        target.states[:tokens] = torch.cat(parts)
    target.offsets[0] = 0
    target.offsets[1 : rows + 1] = lengths.cumsum(0)
    target.offsets[rows + 1 :] = tokens
    target.left[:rows], target.left[rows:] = 0, -1
    target.names[:rows] = source.names[stays]
    target.recent[:, :rows] = source.recent[:, stays]
