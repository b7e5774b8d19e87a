"""Triton kernels for short packed rows: attention, the mean over a row's tokens, and the layers' norms.

A program computes one row and a few heads with all keys of the row in one tile, so a row of sixteen tokens
costs a 16 x 16 product; flash attention pads every row to 128. The largest tile takes its queries a part at a
time, or its scores would not fit in registers. Rows are sorted into tile sizes by early return: each
size is one launch over all rows, whose grid does not depend on the batch (a CUDA graph needs that). The
programs after the last row clear the idle tokens at the batch's end.

A bias by relative position is a table [HEADS, 2 middle + 1], read at the key's place minus the query's plus
`middle`. Its gradient is summed by distance within each row, by one program a row and head, and over the rows
by PyTorch: no atomics, so it is the same in every run. With a bias, rows longer than a block go block by block
(`long_forward`), whatever their length; without one, rows beyond the largest tile are PyTorch's flash attention's.
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
def _bias_at(bias, middle, head, apart, within):
    """The bias of a head at distances `apart`, float32; zeros where not `within`."""
    return tl.load(bias + head * (2 * middle + 1) + middle + apart, mask=within, other=0.0).to(tl.float32)


@triton.jit
def attention_forward(
    qkv, out, offsets, bias, middle, scale, rows, tokens, HEADS: tl.constexpr, D: tl.constexpr,
    TILE: tl.constexpr, LOW: tl.constexpr, PER: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """out = softmax(q k^T scale + bias) v for rows of LOW < length <= TILE, QUERIES queries at a time.

    qkv [N, 3, HEADS, D], out [N, HEADS, D], bias [HEADS, 2 middle + 1] or None.
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
                if bias is not None:
                    apart = token[None, :] - asking[:, None]
                    scores += _bias_at(bias, middle, head, apart, asked & inside[None, :])
                scores = tl.where(inside[None, :], scores, -float("inf"))
                scores = tl.exp(scores - tl.max(scores, 1)[:, None])
                scores = scores / tl.sum(scores, 1)[:, None]
                mixed = tl.dot(scores.to(value.dtype), value)
                tl.store(out + there + head * D + column[None, :], mixed.to(value.dtype), mask=asked)


@triton.jit
def attention_backward(
    qkv, grad, out, by_distance, offsets, bias, middle, scale, rows, tokens, HEADS: tl.constexpr,
    D: tl.constexpr, TILE: tl.constexpr, LOW: tl.constexpr, PER: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """The gradient of `attention_forward`, whose scores are computed again.

    grad [N, HEADS, D], out [N, 3, HEADS, D]; by_distance [B, HEADS, 2 middle + 1] float32, zeros before, or None.
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
            if bias is not None:
                ahead = tl.zeros((TILE,), tl.float32)
                behind = tl.zeros((TILE,), tl.float32)
            for first in range(0, TILE, QUERIES):
                asking = first + tl.arange(0, QUERIES)
                asked = (asking < length)[:, None]
                there = (start + asking).to(tl.int64)[:, None] * (HEADS * D)
                query = tl.load(qkv + 3 * there + head * D + column[None, :], mask=asked, other=0.0)
                given = tl.load(grad + there + head * D + column[None, :], mask=asked, other=0.0)
                scores = tl.dot(query, tl.trans(key)) * scale
                if bias is not None:
                    apart = token[None, :] - asking[:, None]
                    scores += _bias_at(bias, middle, head, apart, asked & inside[None, :])
                scores = tl.where(inside[None, :], scores, -float("inf"))
                scores = tl.exp(scores - tl.max(scores, 1)[:, None])
                scores = scores / tl.sum(scores, 1)[:, None]
                by_score = tl.dot(given, tl.trans(value))
                # The gradient of the softmax, row by row: P (dP - sum(P dP)); and of the scale.
                by_score = scores * (by_score - tl.sum(scores * by_score, 1)[:, None])
                if bias is not None:
                    # Column c of the turned rows is the key c places ahead, or TILE - c behind.
                    turned = asking[:, None] + token[None, :]
                    skewed = tl.gather(by_score, turned % TILE, 1)
                    ahead += tl.sum(tl.where(turned < TILE, skewed, 0.0), 0)
                    behind += tl.sum(tl.where(turned < TILE, 0.0, skewed), 0)
                by_score = (by_score * scale).to(query.dtype)
                by_query = tl.dot(by_score, key)
                tl.store(out + 3 * there + head * D + column[None, :], by_query.to(query.dtype), mask=asked)
                by_key += tl.dot(tl.trans(by_score), query)
                by_value += tl.dot(tl.trans(scores.to(given.dtype)), given)
            tl.store(out + place + HEADS * D, by_key.to(key.dtype), mask=inside[:, None])
            tl.store(out + place + 2 * HEADS * D, by_value.to(key.dtype), mask=inside[:, None])
            if bias is not None:
                sums = by_distance + (row * HEADS + head).to(tl.int64) * (2 * middle + 1) + middle
                tl.store(sums + token, ahead, mask=inside)
                tl.store(sums + token - TILE, behind, mask=TILE - token < length)


@triton.jit
def _rows_of(source, start, place, inside, stride, D: tl.constexpr):
    """The tokens of a row at `place`, [BLOCK, D] of a source whose tokens lie `stride` apart; others are zeros."""
    at = source + (start + place).to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0)


@triton.jit
def _scores(query, key, scale, bias, middle, head, asking, token, length):
    """q k^T scale + bias, [BLOCK, BLOCK]; minus infinity for keys that are none of the row's."""
    inside = (token >= 0) & (token < length)
    scores = tl.dot(query, tl.trans(key)) * scale
    within = (asking < length)[:, None] & inside[None, :]
    scores += _bias_at(bias, middle, head, token[None, :] - asking[:, None], within)
    return tl.where(inside[None, :], scores, -float("inf"))


@triton.jit
def long_forward(
    qkv, out, offsets, bias, middle, scale, rows, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    LOW: tl.constexpr,
):  # fmt: skip
    """`attention_forward` with a bias, for rows longer than LOW, a block of queries a program and row.

    A program goes on to other rows: most batches have few so long, and many programs that do nothing take time.
    """
    head, first = tl.program_id(1), tl.program_id(2) * BLOCK
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.load(offsets + row)
        length = tl.load(offsets + row + 1) - start
        if (length > LOW) & (first < length):
            asking = first + tl.arange(0, BLOCK)
            source = qkv + head * D
            query = _rows_of(source, start, asking, asking < length, 3 * HEADS * D, D)
            top = tl.full((BLOCK,), -float("inf"), tl.float32)
            total = tl.zeros((BLOCK,), tl.float32)
            mixed = tl.zeros((BLOCK, D), tl.float32)
            for other in range(0, length, BLOCK):
                token = other + tl.arange(0, BLOCK)
                key = _rows_of(source + HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                value = _rows_of(source + 2 * HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                scores = _scores(query, key, scale, bias, middle, head, asking, token, length)
                # Each block has a key, so the maximum is finite.
                higher = tl.maximum(top, tl.max(scores, 1))
                shares = tl.exp(scores - higher[:, None])
                before = tl.exp(top - higher)
                total = total * before + tl.sum(shares, 1)
                mixed = mixed * before[:, None] + tl.dot(shares.to(value.dtype), value)
                top = higher
            at = (start + asking).to(tl.int64)[:, None] * (HEADS * D) + head * D + tl.arange(0, D)[None, :]
            tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(asking < length)[:, None])


@triton.jit
def long_by_query(
    qkv, grad, out, stats, offsets, bias, middle, scale, rows, tokens, HEADS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """The queries' gradient of `long_forward`, and what the other two kernels need of each query.

    stats: [2, N, HEADS] float32, the logarithm of the softmax's sum, and sum(P dP).
    """
    head, first = tl.program_id(1), tl.program_id(2) * BLOCK
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.load(offsets + row)
        length = tl.load(offsets + row + 1) - start
        if (length > LOW) & (first < length):
            asking = first + tl.arange(0, BLOCK)
            asked = asking < length
            source = qkv + head * D
            query = _rows_of(source, start, asking, asked, 3 * HEADS * D, D)
            given = _rows_of(grad + head * D, start, asking, asked, HEADS * D, D)
            top = tl.full((BLOCK,), -float("inf"), tl.float32)
            total = tl.zeros((BLOCK,), tl.float32)
            product = tl.zeros((BLOCK,), tl.float32)
            for other in range(0, length, BLOCK):
                token = other + tl.arange(0, BLOCK)
                key = _rows_of(source + HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                value = _rows_of(source + 2 * HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                scores = _scores(query, key, scale, bias, middle, head, asking, token, length)
                higher = tl.maximum(top, tl.max(scores, 1))
                shares = tl.exp(scores - higher[:, None])
                before = tl.exp(top - higher)
                total = total * before + tl.sum(shares, 1)
                product = product * before + tl.sum(shares * tl.dot(given, tl.trans(value)), 1)
                top = higher
            level = top + tl.log(total)
            product = product / total
            by_query = tl.zeros((BLOCK, D), tl.float32)
            for other in range(0, length, BLOCK):
                token = other + tl.arange(0, BLOCK)
                key = _rows_of(source + HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                value = _rows_of(source + 2 * HEADS * D, start, token, token < length, 3 * HEADS * D, D)
                scores = _scores(query, key, scale, bias, middle, head, asking, token, length)
                by_score = tl.exp(scores - level[:, None]) * (tl.dot(given, tl.trans(value)) - product[:, None])
                by_query += tl.dot((by_score * scale).to(key.dtype), key)
            at = (start + asking).to(tl.int64)
            place = at[:, None] * (3 * HEADS * D) + head * D + tl.arange(0, D)[None, :]
            tl.store(out + place, by_query.to(out.dtype.element_ty), mask=asked[:, None])
            tl.store(stats + at * HEADS + head, level, mask=asked)
            tl.store(stats + (tokens + at) * HEADS + head, product, mask=asked)


@triton.jit
def _shares(
    query, given, key, value, stats, start, tokens, scale, bias, middle, head, asking, token, length,
    HEADS: tl.constexpr,
):  # fmt: skip
    """A block of the softmax P and of the scores' gradient P (dP - sum(P dP)), zeros outside of the row."""
    asked = asking < length
    at = (start + asking).to(tl.int64) * HEADS + head
    level = tl.load(stats + at, mask=asked, other=0.0)
    product = tl.load(stats + tokens * HEADS + at, mask=asked, other=0.0)
    scores = _scores(query, key, scale, bias, middle, head, asking, token, length)
    shares = tl.where(asked[:, None], tl.exp(scores - level[:, None]), 0.0)
    return shares, shares * (tl.dot(given, tl.trans(value)) - product[:, None])


@triton.jit
def long_by_key(
    qkv, grad, out, stats, offsets, bias, middle, scale, rows, tokens, HEADS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """The keys' and values' gradients of `long_forward`, a block of keys a program."""
    head, first = tl.program_id(1), tl.program_id(2) * BLOCK
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.load(offsets + row)
        length = tl.load(offsets + row + 1) - start
        if (length > LOW) & (first < length):
            token = first + tl.arange(0, BLOCK)
            inside = token < length
            source = qkv + head * D
            key = _rows_of(source + HEADS * D, start, token, inside, 3 * HEADS * D, D)
            value = _rows_of(source + 2 * HEADS * D, start, token, inside, 3 * HEADS * D, D)
            by_key = tl.zeros((BLOCK, D), tl.float32)
            by_value = tl.zeros((BLOCK, D), tl.float32)
            for other in range(0, length, BLOCK):
                asking = other + tl.arange(0, BLOCK)
                query = _rows_of(source, start, asking, asking < length, 3 * HEADS * D, D)
                given = _rows_of(grad + head * D, start, asking, asking < length, HEADS * D, D)
                shares, by_score = _shares(
                    query, given, key, value, stats, start, tokens, scale, bias, middle, head, asking, token,
                    length, HEADS,
                )  # fmt: skip
                by_key += tl.dot(tl.trans((by_score * scale).to(query.dtype)), query)
                by_value += tl.dot(tl.trans(shares.to(given.dtype)), given)
            at = (start + token).to(tl.int64)[:, None] * (3 * HEADS * D) + head * D + tl.arange(0, D)[None, :]
            tl.store(out + at + HEADS * D, by_key.to(out.dtype.element_ty), mask=inside[:, None])
            tl.store(out + at + 2 * HEADS * D, by_value.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def long_by_distance(
    qkv, grad, by_distance, stats, offsets, bias, middle, scale, rows, tokens, HEADS: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """The bias's gradient of `long_forward` within a row, BLOCK distances a program, the farthest behind first."""
    head, apart = tl.program_id(1), (tl.program_id(2) - tl.num_programs(2) // 2) * BLOCK
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.load(offsets + row)
        length = tl.load(offsets + row + 1) - start
        if (length > LOW) & (apart < length) & (apart + BLOCK > -length):
            column = tl.arange(0, BLOCK)
            source = qkv + head * D
            sums = tl.zeros((BLOCK,), tl.float32)
            for first in range(0, length, BLOCK):
                asking = first + column
                query = _rows_of(source, start, asking, asking < length, 3 * HEADS * D, D)
                given = _rows_of(grad + head * D, start, asking, asking < length, HEADS * D, D)
                turned = column[:, None] + column[None, :]
                # The distances apart + column lead each query into two blocks of keys.
                for step in range(2):
                    token = first + apart + step * BLOCK + column
                    inside = (token >= 0) & (token < length)
                    key = _rows_of(source + HEADS * D, start, token, inside, 3 * HEADS * D, D)
                    value = _rows_of(source + 2 * HEADS * D, start, token, inside, 3 * HEADS * D, D)
                    _, by_score = _shares(
                        query, given, key, value, stats, start, tokens, scale, bias, middle, head, asking, token,
                        length, HEADS,
                    )  # fmt: skip
                    skewed = tl.gather(by_score, turned % BLOCK, 1)
                    sums += tl.sum(tl.where(turned // BLOCK == step, skewed, 0.0), 0)
            distance = apart + column
            at = by_distance + (row * HEADS + head).to(tl.int64) * (2 * middle + 1) + middle + distance
            tl.store(at, sums, mask=(distance < length) & (-distance < length))


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
