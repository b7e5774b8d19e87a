"""Triton kernels of the graphed path: the exit test with its pooling, and moving the rows that stay.

`leap.exits.cuda.exit_steps` has their reference implementations; the buffers are those of
`leap.exits.cuda.buckets.Bucket`.
"""

import triton
import triton.language as tl


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit(do_not_specialize=["layer", "before", "now", "rows"])
def exit_test(
    states, offsets, left, names, recent, vectors, exits, thresholds, counters, flags, epoch,
    layer, before, now, rows, TEST: tl.constexpr, LAST: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, ROW_ONE: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Pools one layer's states for the rows that are there; a program a row.

    TOKENS are read at a time: all of a long row's by one program, so as many as its warps hold.
    TEST: rows whose cosine with the pooled vector in slot `before` reaches the layer's threshold leave with
    their vector, and the last program tells the host how many rows and tokens stay. LAST: all leave.
    """
    row = tl.program_id(0)
    # A row that has left, or that only fills the bucket (-1), has length 0 here: it reads and writes nothing.
    there = tl.load(left + row) == 0
    start = tl.load(offsets + row)
    length = tl.where(there, tl.load(offsets + row + 1) - start, 0)
    column = tl.arange(0, BLOCK)
    token = tl.arange(0, TOKENS)
    mask = (column < D) & there
    # Read first of all: the memory answers while the states are summed.
    if TEST or LAST:
        name = tl.load(names + row)  # rows move between buffers: which row of the batch this one is
    if TEST:
        earlier = tl.load(recent + (before * rows + row) * D + column, mask=mask, other=0.0)
        threshold = tl.load(thresholds + layer)
    # Summed over tokens only at the end: the loop then has no exchange between threads.
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    for first in range(0, length, TOKENS):
        inside = (first + token < length)[:, None] & (column < D)[None, :]
        at = (start + first + token).to(tl.int64)
        values = tl.load(states + at[:, None] * D + column[None, :], mask=inside, other=0.0)
        total += values.to(tl.float32)
    mean = tl.sum(total, 0) / tl.maximum(length, 1)
    tl.store(recent + (now * rows + row) * D + column, mean, mask=mask)
    if TEST or LAST:
        leaves = there
        if TEST:
            # Three sums in one exchange between warps.
            own, other, both = tl.reduce((mean * mean, earlier * earlier, mean * earlier), 0, _add_three)
            cosine = both / (tl.maximum(tl.sqrt(own), 1e-8) * tl.maximum(tl.sqrt(other), 1e-8))
            # As torch's cosine_similarity: a zero vector is like nothing, and a cosine that is not a number stays.
            leaves = there & (cosine >= threshold)
        tl.store(vectors + name * D + column, mean, mask=mask & leaves)
        tl.store(exits + name, layer, mask=leaves)
        tl.store(left + row, layer, mask=leaves)
        if TEST:
            # A layer's 64-bit counter has three fields: tokens that stay (below), rows that stay (ROW_ONE each),
            # and above both (ALL + 1 each) programs that are done. One atomic addition moves all three, and the
            # program that brings the last field to `rows` knows the final sums without any other barrier.
            mine = tl.where(leaves, 0, tl.where(there, ROW_ONE + length, 0)).to(tl.int64)
            seen = tl.atomic_add(counters + layer, mine + ALL + 1)
            if (seen + mine + ALL + 1) // (ALL + 1) == rows:
                # To pinned memory, where the host polls. The epoch makes it a number that this run alone can
                # write, so that the flag need not be cleared between runs.
                tl.store(flags + layer, tl.load(epoch) * (ALL + 1) + ((seen + mine) & ALL))


@triton.jit(do_not_specialize=["rows", "to_rows"])
def compact(
    states, offsets, left, names, recent, to_states, to_offsets, to_left, to_names, to_recent, rows, to_rows,
    SLOTS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Move the rows that are there, in order, to the front of other buffers; a program a row, and one."""
    row = tl.program_id(0)
    # Every program reads which rows stay and how long they are, and so finds its row's place by itself.
    every = tl.arange(0, BLOCK_ROWS)
    staying = tl.load(left + every, mask=every < rows, other=1) == 0
    starts = tl.load(offsets + every, mask=staying, other=0)
    lengths = tl.load(offsets + every + 1, mask=staying, other=0) - starts
    # The one program more writes what follows the rows: empty rows to the end of the buffer.
    if row == rows:
        count = tl.sum(staying.to(tl.int32), 0)
        end = tl.sum(lengths, 0) + tl.zeros((BLOCK_ROWS,), tl.int32)
        tl.store(to_offsets + every, end, mask=(every >= count) & (every <= to_rows))
        none = tl.full((BLOCK_ROWS,), -1, tl.int32)
        tl.store(to_left + every, none, mask=(every >= count) & (every < to_rows))
    else:
        if tl.load(left + row) == 0:
            # The rows that stay before this one: its place; their tokens: where its own begin.
            place = tl.sum((staying & (every < row)).to(tl.int32), 0)
            target = tl.sum(tl.where(every < row, lengths, 0), 0)
            start = tl.load(offsets + row)
            length = tl.load(offsets + row + 1) - start
            tl.store(to_offsets + place, target)
            tl.store(to_left + place, 0)
            tl.store(to_names + place, tl.load(names + row))
            column = tl.arange(0, BLOCK)
            token = tl.arange(0, 16)
            for first in range(0, length, 16):
                inside = (first + token < length)[:, None] & (column < D)[None, :]
                at = (start + first + token).to(tl.int64)
                to = (target + first + token).to(tl.int64)
                values = tl.load(states + at[:, None] * D + column[None, :], mask=inside, other=0.0)
                tl.store(to_states + to[:, None] * D + column[None, :], values, mask=inside)
            # The pooled vectors that the next tests compare with move along.
            for slot in range(SLOTS):
                vector = tl.load(recent + (slot * rows + row) * D + column, mask=column < D, other=0.0)
                tl.store(to_recent + (slot * to_rows + place) * D + column, vector, mask=column < D)
