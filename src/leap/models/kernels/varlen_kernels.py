"""Triton kernels for short packed rows: attention, the mean over a row's tokens, and the layers' norms.

A program computes one row and a few heads with all keys of the row in one tile, so a row of sixteen tokens
costs a 16 x 16 product; flash attention pads every row to 128. The largest tile takes its queries a part at a
time, or its scores would not fit in registers. Rows are sorted into tile sizes by early return: each
size is one launch over all rows, whose grid does not depend on the batch (a CUDA graph needs that). The
programs after the last row clear the idle tokens at the batch's end.
"""

import triton
import triton.language as tl


@triton.jit
def _clear(out, first, last, WIDTH: tl.constexpr):
    """Zeros in the tokens from `first` to before `last`, which belong to no row; out [N, WIDTH]."""
    column = tl.arange(0, 128)
    for token in range(first, last):
        for start in range(0, WIDTH, 128):
            place = (token + tl.zeros((128,), tl.int64)) * WIDTH + start + column
            tl.store(out + place, tl.zeros((128,), out.dtype.element_ty), mask=start + column < WIDTH)


@triton.jit
def attention_forward(
    qkv, out, offsets, scale, rows, tokens, HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
    LOW: tl.constexpr, PER: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """out = softmax(q k^T scale) v for rows of LOW < length <= TILE, QUERIES queries at a time.

    qkv [N, 3, HEADS, D], out [N, HEADS, D].
    """
    row = tl.program_id(0)
    start = tl.load(offsets + row)
    # One more program than rows: its start is the end of the last row. Of the launches for the tile sizes only the
    # smallest (LOW == 0) clears, and of its programs only one head's.
    if row == rows:
        if (LOW == 0) & (tl.program_id(1) == 0):
            _clear(out, start, tokens, HEADS * D)
        return
    length = tl.load(offsets + row + 1) - start
    # Rows of other sizes are another launch's: the grid is the same for every batch, as a CUDA graph needs it.
    if (length > LOW) & (length <= TILE):
        token = tl.arange(0, TILE)
        inside = token < length
        column = tl.arange(0, D)
        # 64 bits: tokens times 3 HEADS D can pass 2^31.
        at = (start + token).to(tl.int64)
        # Small tiles take PER heads one after the other: one head of so few tokens is little for a program.
        for step in tl.static_range(PER):
            head = tl.program_id(1) * PER + step
            source = qkv + at[:, None] * (3 * HEADS * D) + head * D + column[None, :]
            key = tl.load(source + HEADS * D, mask=inside[:, None], other=0.0)
            value = tl.load(source + 2 * HEADS * D, mask=inside[:, None], other=0.0)
            # Keys and values stay in registers; queries come in parts, or a large tile's scores would spill.
            for first in range(0, TILE, QUERIES):
                asking = first + tl.arange(0, QUERIES)
                asked = (asking < length)[:, None]
                there = (start + asking).to(tl.int64)[:, None] * (HEADS * D)
                query = tl.load(qkv + 3 * there + head * D + column[None, :], mask=asked, other=0.0)
                # All keys of the row are here, so this is the whole softmax: no running maximum is carried.
                # Queries beyond the end have scores of zero, not of infinity, and are not stored.
                scores = tl.dot(query, tl.trans(key)) * scale
                scores = tl.where(inside[None, :], scores, -float("inf"))
                scores = tl.exp(scores - tl.max(scores, 1)[:, None])
                scores = scores / tl.sum(scores, 1)[:, None]
                mixed = tl.dot(scores.to(value.dtype), value)
                tl.store(out + there + head * D + column[None, :], mixed.to(value.dtype), mask=asked)


@triton.jit
def attention_backward(
    qkv, grad, out, offsets, scale, rows, tokens, HEADS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
    LOW: tl.constexpr, PER: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The gradient of `attention_forward`, whose scores are computed again.

    grad [N, HEADS, D], out [N, 3, HEADS, D].
    """
    row = tl.program_id(0)
    start = tl.load(offsets + row)
    if row == rows:
        if (LOW == 0) & (tl.program_id(1) == 0):
            _clear(out, start, tokens, 3 * HEADS * D)
        return
    length = tl.load(offsets + row + 1) - start
    if (length > LOW) & (length <= TILE):
        token = tl.arange(0, TILE)
        inside = token < length
        column = tl.arange(0, D)
        at = (start + token).to(tl.int64)
        for step in tl.static_range(PER):
            head = tl.program_id(1) * PER + step
            place = at[:, None] * (3 * HEADS * D) + head * D + column[None, :]
            key = tl.load(qkv + place + HEADS * D, mask=inside[:, None], other=0.0)
            value = tl.load(qkv + place + 2 * HEADS * D, mask=inside[:, None], other=0.0)
            # Sums over the queries' parts, in float32 until all are added.
            by_key = tl.zeros((TILE, D), tl.float32)
            by_value = tl.zeros((TILE, D), tl.float32)
            for first in range(0, TILE, QUERIES):
                asking = first + tl.arange(0, QUERIES)
                asked = (asking < length)[:, None]
                there = (start + asking).to(tl.int64)[:, None] * (HEADS * D)
                query = tl.load(qkv + 3 * there + head * D + column[None, :], mask=asked, other=0.0)
                given = tl.load(grad + there + head * D + column[None, :], mask=asked, other=0.0)
                scores = tl.dot(query, tl.trans(key)) * scale
                scores = tl.where(inside[None, :], scores, -float("inf"))
                scores = tl.exp(scores - tl.max(scores, 1)[:, None])
                scores = scores / tl.sum(scores, 1)[:, None]
                by_score = tl.dot(given, tl.trans(value))
                # The gradient of the softmax, row by row: P (dP - sum(P dP)); and of the scale.
                by_score = scores * (by_score - tl.sum(scores * by_score, 1)[:, None]) * scale
                by_score = by_score.to(query.dtype)
                by_query = tl.dot(by_score, key)
                tl.store(out + 3 * there + head * D + column[None, :], by_query.to(query.dtype), mask=asked)
                by_key += tl.dot(tl.trans(by_score), query)
                by_value += tl.dot(tl.trans(scores.to(given.dtype)), given)
            tl.store(out + place + HEADS * D, by_key.to(key.dtype), mask=inside[:, None])
            tl.store(out + place + 2 * HEADS * D, by_value.to(key.dtype), mask=inside[:, None])


@triton.jit
def add_norm_forward(states, addition, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = the layer norm of states + addition, all [N, WIDTH]; a program a token.

    The sum is rounded as PyTorch rounds it between its two kernels; everything after is float32.
    """
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    # Added in half precision on purpose: the sum of two loads has their type.
    summed = tl.load(states + place, mask=inside, other=0.0) + tl.load(addition + place, mask=inside, other=0.0)
    summed = summed.to(tl.float32)
    mean = tl.sum(summed, 0) / WIDTH
    # Columns that only fill the block up to a power of two must not enter the variance.
    centred = tl.where(inside, summed - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
    slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    normed = centred * scale * slope + shift
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def mean_forward(states, out, offsets, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[row] = the mean of the row's tokens; states [N, WIDTH], out [B, WIDTH] float32."""
    row = tl.program_id(0)
    start = tl.load(offsets + row)
    length = tl.load(offsets + row + 1) - start
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.arange(0, 16)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, length, 16):
        inside = (first + token < length)[:, None] & (column < WIDTH)[None, :]
        at = (start + first + token).to(tl.int64)
        values = tl.load(states + at[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
        total += tl.sum(values.to(tl.float32), 0)
    tl.store(out + row * WIDTH + column, total / length, mask=column < WIDTH)


@triton.jit
def mean_backward(grad, out, offsets, rows, tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[token] = grad[row] / length for the row's tokens; grad [B, WIDTH] float32, out [N, WIDTH]."""
    row = tl.program_id(0)
    start = tl.load(offsets + row)
    if row == rows:
        if tl.program_id(1) == 0:
            _clear(out, start, tokens, WIDTH)
        return
    length = tl.load(offsets + row + 1) - start
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.arange(0, 16)
    share = tl.load(grad + row * WIDTH + column, mask=column < WIDTH, other=0.0) / length
    for first in range(0, length, 16):
        inside = (first + token < length)[:, None] & (column < WIDTH)[None, :]
        at = (start + first + token).to(tl.int64)
        values = tl.broadcast_to(share[None, :], (16, BLOCK)).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * WIDTH + column[None, :], values, mask=inside)
