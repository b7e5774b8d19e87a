# mypy: ignore-errors
"""The whole encoder as one CUDA kernel, with the exit test inside (Triton).

Whole sentences are packed into tiles of at most TOKENS tokens, and a group of programs takes a tile through all
layers. The programs of a group share every step's columns among themselves and meet at a counter in global memory
between steps; groups never wait for one another. So a tile stops when its last sentence has left, without the host.

A layer has four steps, each one matrix product with what surrounds it:

attend   normalise, pool and test the layer before, queries, keys and values of a head, attention
project  attention's output product, residual
widen    normalise, the widening product, GELU
narrow   the narrowing product, residual

A state before its layer norm is stored with each column block's mean and squared deviations; whoever reads it
combines those and normalises on the way, so that a norm needs no step of its own.
"""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["patience", "row_capacity", "capacity", "tiles", "groups", "members", "stop"],
    do_not_specialize_on_alignment=[
        "ids", "positions", "owners", "tile_tokens", "tile_rows", "plan", "thresholds", "vectors", "exits",
    ],
)
def encode_kernel(
    # The batch: [N] int64, [N] int64, [N] int32; the tiles' first tokens and first rows, [tiles + 1] int32.
    ids,
    positions,
    owners,
    tile_tokens,
    tile_rows,
    # What to do after a layer: [L + 1] int32, 1 to pool it and 2 to test it besides; [L + 1] float32.
    plan,
    thresholds,
    # Weights: tables, norms [L + 1, 2, D] (index 0 the embeddings'), layers one after the other.
    words,
    places,
    types,
    norms,
    weights,
    # Work space.
    states,
    middle,
    attended,
    wide,
    parts,
    middle_parts,
    moments,
    middle_moments,
    recent,
    counters,
    # Results: [B, D] float32 and [B] int64.
    vectors,
    exits,
    patience,
    row_capacity,
    capacity,
    tiles,
    groups,
    members,
    stop,
    EPS: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE_CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    HEAD: tl.constexpr = D // HEADS
    LAYER: tl.constexpr = 3 * D * D + D * D + 2 * D * F + 3 * D + D + 2 * D + F + D
    group = tl.program_id(0) // members
    rank = tl.program_id(0) % members
    counter = counters + group * 16
    target = tl.full((), 0, tl.int64)
    left_before = tl.full((), 0, tl.int64)
    for tile in tl.range(group, tiles, groups, num_stages=1):
        token = tl.load(tile_tokens + tile)
        token_end = tl.load(tile_tokens + tile + 1)
        row = tl.load(tile_rows + tile)
        row_end = tl.load(tile_rows + tile + 1)
        for item in tl.range(rank, D // COLUMNS, members, num_stages=1):
            _embed(
                item, token, token_end, row, row_end, ids, positions, words, places, types, states, parts, exits,
                capacity, D, TOKENS, COLUMNS, INTERPRETED,
            )
        flags = tl.load(plan)
        target += members
        _meet(counter, target, 0, INTERPRETED)
        layer = tl.full((), 0, tl.int32)
        left = tl.full((), 0, tl.int32)
        while (layer < stop) & (left == 0):
            weight = weights + layer.to(tl.int64) * LAYER
            norm = norms + layer * 2 * D
            bias = weight + 4 * D * D + 2 * D * F
            tile_left = tl.full((), 0, tl.int64)
            if flags == 0:
                for head in tl.range(rank, HEADS, members, num_stages=1):
                    _attend(
                        head, token, token_end, owners, row, row_end, layer, flags, norm, weight, bias, states, parts,
                        moments, attended, recent, vectors, exits, thresholds, patience, row_capacity, capacity,
                        EPS, D, HEAD, TOKENS, SPLIT, CHUNK, COLUMNS, STAGES, False, INTERPRETED,
                    )
            else:
                for head in tl.range(rank, HEADS, members, num_stages=1):
                    tile_left = _attend(
                        head, token, token_end, owners, row, row_end, layer, flags, norm, weight, bias, states, parts,
                        moments, attended, recent, vectors, exits, thresholds, patience, row_capacity, capacity,
                        EPS, D, HEAD, TOKENS, SPLIT, CHUNK, COLUMNS, STAGES, True, INTERPRETED,
                    )
            flags = tl.load(plan + layer + 1)
            target += members
            seen = _meet(counter, target, tile_left, INTERPRETED)
            left = (seen != left_before).to(tl.int32)
            left_before = seen
            if left == 0:
                for item in tl.range(rank, D // COLUMNS, members, num_stages=1):
                    _narrow(
                        item, token, token_end, norm, weight + 3 * D * D, bias + 3 * D, attended, states, moments,
                        middle, middle_parts, capacity, D, D, TOKENS, SPLIT, CHUNK, COLUMNS, STAGES, INTERPRETED,
                    )
                target += members
                _meet(counter, target, 0, INTERPRETED)
                for item in tl.range(rank, F // WIDE_COLUMNS, members, num_stages=1):
                    _widen(
                        item, token, token_end, bias + 4 * D, weight + 4 * D * D, bias + 6 * D, middle, middle_parts,
                        middle_moments, wide, capacity, EPS, D, F, TOKENS, SPLIT, CHUNK, COLUMNS, WIDE_COLUMNS,
                        STAGES, INTERPRETED,
                    )
                target += members
                _meet(counter, target, 0, INTERPRETED)
                for item in tl.range(rank, D // COLUMNS, members, num_stages=1):
                    _narrow(
                        item, token, token_end, bias + 4 * D, weight + 4 * D * D + D * F, bias + 6 * D + F, wide,
                        middle, middle_moments, states, parts, capacity, D, F, TOKENS, SPLIT, WIDE_CHUNK, COLUMNS,
                        STAGES, INTERPRETED,
                    )
                target += members
                _meet(counter, target, 0, INTERPRETED)
                layer += 1
        if left == 0:
            for item in tl.range(rank, D // CHUNK, members, num_stages=1):
                _finish(
                    item, token, token_end, owners, row, row_end, stop, norms + stop * 2 * D, states, parts, vectors,
                    exits, capacity, EPS, D, TOKENS, CHUNK, COLUMNS, INTERPRETED,
                )
    # The last program of a group to end leaves the counters as it found them, for the next launch.
    if tl.atomic_add(counter + 8, 1, sem="acq_rel", scope="gpu") == members - 1:
        tl.store(counter, 0)
        tl.store(counter + 8, 0)


@triton.jit
def _meet(counter, target, payload, INTERPRETED: tl.constexpr):
    """Waits for the whole group; returns the payloads added so far. Arrivals are counted in the low 32 bits."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1 + (payload << 32), sem="release", scope="gpu")
    seen = _read(counter, INTERPRETED)
    while (seen & 0xFFFFFFFF) < target:
        seen = _read(counter, INTERPRETED)
    tl.debug_barrier()
    return seen >> 32


@triton.jit
def _read(counter, INTERPRETED: tl.constexpr):
    if INTERPRETED:
        return tl.load(counter)
    else:
        return tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.s64 $0, [$1];", "=l,l", [counter], dtype=tl.int64, is_pure=False, pack=1
        )


@triton.jit
def _fresh(value, INTERPRETED: tl.constexpr):
    """The same value, unknown to the compiler: what follows from it is not kept in registers across layers."""
    if INTERPRETED:
        return value
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _places(first, end, SIZE: tl.constexpr, INTERPRETED: tl.constexpr):
    place = _fresh(first, INTERPRETED) + tl.arange(0, SIZE)
    return place, place < end


@triton.jit
def _zeros(M: tl.constexpr, N: tl.constexpr, SPLIT: tl.constexpr):
    if SPLIT == 1:
        return tl.zeros([M, N], tl.float32)
    else:
        return tl.zeros([SPLIT, M, N], tl.float32)


@triton.jit
def _product(total, x, w, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr):
    """total + x w^T. Few tokens make a long chain of dependent products: SPLIT parts of K run side by side."""
    if SPLIT == 1:
        return tl.dot(x, tl.trans(w), total)
    else:
        x = tl.permute(tl.reshape(x, [M, SPLIT, K // SPLIT]), [1, 0, 2])
        w = tl.permute(tl.reshape(w, [N, SPLIT, K // SPLIT]), [1, 2, 0])
        return tl.dot(x, w, total)


@triton.jit
def _folded(total, SPLIT: tl.constexpr):
    if SPLIT == 1:
        return total
    else:
        return tl.sum(total, 0)


@triton.jit
def _combined(
    parts, token, valid, capacity, EPS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr
):
    """Each token's mean and 1 / deviation over D columns, from its column blocks' (Chan et al., 1979)."""
    PARTS: tl.constexpr = D // COLUMNS
    part = tl.arange(0, PADDED)
    place = token[:, None] + part[None, :] * 2 * capacity
    known = valid[:, None] & (part < PARTS)[None, :]
    means = tl.load(parts + place, mask=known, other=0.0, cache_modifier=".cg")
    squares = tl.load(parts + capacity + place, mask=known, other=0.0, cache_modifier=".cg")
    mean = tl.sum(means, 1) / PARTS
    apart = tl.where(known, means - mean[:, None], 0.0)
    variance = (tl.sum(squares, 1) + COLUMNS * tl.sum(apart * apart, 1)) / D
    return mean, tl.rsqrt(variance + EPS)


@triton.jit
def _normed(states, token, valid, column, mean, deviation, norm, D: tl.constexpr):
    x = tl.load(
        states + token[:, None] * D + column[None, :], mask=valid[:, None], other=0.0, cache_modifier=".cg"
    ).to(tl.float32)
    scale = tl.load(norm + column).to(tl.float32)
    shift = tl.load(norm + D + column).to(tl.float32)
    return (x - mean[:, None]) * deviation[:, None] * scale[None, :] + shift[None, :]


@triton.jit
def _keep(values, item, token, valid, states, parts, capacity, D: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores a block of columns with its statistics."""
    column = item * COLUMNS + tl.arange(0, COLUMNS)
    rounded = values.to(states.dtype.element_ty)
    tl.store(states + token[:, None] * D + column[None, :], rounded, mask=valid[:, None])
    values = rounded.to(tl.float32)
    mean = tl.sum(values, 1) / COLUMNS
    apart = values - mean[:, None]
    place = parts + item * 2 * capacity + token
    tl.store(place, mean, mask=valid)
    tl.store(place + capacity, tl.sum(apart * apart, 1), mask=valid)


@triton.jit
def _embed(
    item, token, token_end, row, row_end, ids, positions, words, places, types, states, parts, exits, capacity,
    D: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    token, valid = _places(token, token_end, TOKENS, INTERPRETED)
    row, row_valid = _places(row, row_end, 16, INTERPRETED)
    if item == 0:
        tl.store(exits + row, 0, mask=row_valid)
    column = item * COLUMNS + tl.arange(0, COLUMNS)
    word = tl.load(ids + token, mask=valid, other=0).to(tl.int64)
    place = tl.load(positions + token, mask=valid, other=0)
    total = tl.load(words + word[:, None] * D + column[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
    total += tl.load(places + place[:, None] * D + column[None, :], mask=valid[:, None], other=0.0)
    total += tl.load(types + column)[None, :]
    _keep(total, item, token, valid, states, parts, capacity, D, COLUMNS)


@triton.jit
def _attend(
    head, token, token_end, owners, row, row_end, layer, flags, norm, weight, bias, states, parts, moments, attended,
    recent, vectors, exits, thresholds, patience, row_capacity, capacity, EPS: tl.constexpr, D: tl.constexpr,
    HEAD: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, POOL: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One head of layer `layer` + 1, on the output of layer `layer`, which is pooled and tested on the way.

    Every head's program comes to the same verdict from the same numbers; head 0 writes it down.
    Returns 1 where all rows have left.
    """
    kind: tl.constexpr = states.dtype.element_ty
    token, valid = _places(token, token_end, TOKENS, INTERPRETED)
    row, row_valid = _places(row, row_end, 16, INTERPRETED)
    owner = tl.load(owners + token, mask=valid, other=-1)
    head = _fresh(head, INTERPRETED)
    mean, deviation = _combined(parts, token, valid, capacity, EPS, D, COLUMNS, triton.next_power_of_2(D // COLUMNS))
    if head == 0:
        tl.store(moments + token, mean, mask=valid)
        tl.store(moments + capacity + token, deviation, mask=valid)
    query = _zeros(TOKENS, HEAD, SPLIT)
    key = _zeros(TOKENS, HEAD, SPLIT)
    value = _zeros(TOKENS, HEAD, SPLIT)
    inner = tl.arange(0, HEAD)
    line = weight + (head * HEAD + inner)[:, None] * D
    if POOL:
        belongs = owner[None, :] == row[:, None]
        share = 1.0 / tl.maximum(tl.sum(belongs.to(tl.float32), 1), 1.0)
        left_at = tl.load(exits + row, mask=row_valid, other=-1, cache_modifier=".cg")
        active = row_valid & ((left_at == 0) | (left_at == layer))
        inside = tl.zeros([16], tl.float32)
        size = tl.zeros([16], tl.float32)
        size_before = tl.zeros([16], tl.float32)
        slots = patience + 1
        now = recent + (layer % slots) * row_capacity * D
        before = recent + ((layer + 1) % slots) * row_capacity * D
    for start in tl.range(0, D, CHUNK, num_stages=STAGES):
        column = start + tl.arange(0, CHUNK)
        x = _normed(states, token, valid, column, mean, deviation, norm, D).to(kind)
        query = _product(query, x, tl.load(line + column[None, :]), TOKENS, HEAD, CHUNK, SPLIT)
        key = _product(key, x, tl.load(line + D * D + column[None, :]), TOKENS, HEAD, CHUNK, SPLIT)
        value = _product(value, x, tl.load(line + 2 * D * D + column[None, :]), TOKENS, HEAD, CHUNK, SPLIT)
        if POOL:
            pooled = tl.dot(belongs.to(kind), x) * share[:, None]
            place = row[:, None] * D + column[None, :]
            earlier = tl.load(before + place, mask=active[:, None], other=0.0, cache_modifier=".cg")
            inside += tl.sum(pooled * earlier, 1)
            size += tl.sum(pooled * pooled, 1)
            size_before += tl.sum(earlier * earlier, 1)
            if head == 0:
                tl.store(now + place, pooled, mask=active[:, None])
                tl.store(vectors + place, pooled, mask=active[:, None])
    left = tl.full((), 0, tl.int64)
    if POOL:
        if flags > 1:
            # As torch's cosine_similarity: a zero vector is like nothing.
            cosine = inside / (tl.maximum(tl.sqrt(size), 1e-8) * tl.maximum(tl.sqrt(size_before), 1e-8))
            leaves = active & (cosine >= tl.load(thresholds + layer))
            if head == 0:
                tl.store(exits + row, layer, mask=leaves)
            left = (tl.sum((active & (leaves == 0)).to(tl.int32), 0) == 0).to(tl.int64)
    if left == 0:
        q = _folded(query, SPLIT) + tl.load(bias + head * HEAD + inner).to(tl.float32)[None, :]
        k = _folded(key, SPLIT) + tl.load(bias + D + head * HEAD + inner).to(tl.float32)[None, :]
        v = _folded(value, SPLIT) + tl.load(bias + 2 * D + head * HEAD + inner).to(tl.float32)[None, :]
        scores = tl.dot(q.to(kind), tl.trans(k.to(kind))) * (HEAD**-0.5)
        scores = tl.where(owner[:, None] == owner[None, :], scores, -float("inf"))
        scores = tl.exp(scores - tl.max(scores, 1)[:, None])
        mixed = tl.dot(scores.to(kind), v.to(kind)) / tl.sum(scores, 1)[:, None]
        column = head * HEAD + inner
        tl.store(attended + token[:, None] * D + column[None, :], mixed.to(kind), mask=valid[:, None])
    return left


@triton.jit
def _narrow(
    item, token, token_end, norm, weight, bias, inputs, before, moments, states, parts, capacity, D: tl.constexpr,
    K: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A block of columns of norm(before) + inputs weight^T + bias."""
    token, valid = _places(token, token_end, TOKENS, INTERPRETED)
    item = _fresh(item, INTERPRETED)
    column = item * COLUMNS + tl.arange(0, COLUMNS)
    mean = tl.load(moments + token, mask=valid, other=0.0, cache_modifier=".cg")
    deviation = tl.load(moments + capacity + token, mask=valid, other=0.0, cache_modifier=".cg")
    residual = _normed(before, token, valid, column, mean, deviation, norm, D)
    # The residual is what the norm gave in the model's own precision.
    residual = residual.to(states.dtype.element_ty).to(tl.float32)
    total = _zeros(TOKENS, COLUMNS, SPLIT)
    for start in tl.range(0, K, CHUNK, num_stages=STAGES):
        inner = start + tl.arange(0, CHUNK)
        x = tl.load(inputs + token[:, None] * K + inner[None, :], mask=valid[:, None], other=0.0, cache_modifier=".cg")
        w = tl.load(weight + column[:, None] * K + inner[None, :])
        total = _product(total, x, w, TOKENS, COLUMNS, CHUNK, SPLIT)
    total = _folded(total, SPLIT) + tl.load(bias + column).to(tl.float32)[None, :] + residual
    _keep(total, item, token, valid, states, parts, capacity, D, COLUMNS)


@triton.jit
def _widen(
    item, token, token_end, norm, weight, bias, states, parts, moments, wide, capacity, EPS: tl.constexpr,
    D: tl.constexpr, F: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE_COLUMNS: tl.constexpr, STAGES: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A block of columns of gelu(norm(states) weight^T + bias)."""
    kind: tl.constexpr = states.dtype.element_ty
    token, valid = _places(token, token_end, TOKENS, INTERPRETED)
    item = _fresh(item, INTERPRETED)
    mean, deviation = _combined(parts, token, valid, capacity, EPS, D, COLUMNS, triton.next_power_of_2(D // COLUMNS))
    if item == 0:
        tl.store(moments + token, mean, mask=valid)
        tl.store(moments + capacity + token, deviation, mask=valid)
    column = item * WIDE_COLUMNS + tl.arange(0, WIDE_COLUMNS)
    total = _zeros(TOKENS, WIDE_COLUMNS, SPLIT)
    for start in tl.range(0, D, CHUNK, num_stages=STAGES):
        inner = start + tl.arange(0, CHUNK)
        x = _normed(states, token, valid, inner, mean, deviation, norm, D).to(kind)
        w = tl.load(weight + column[:, None] * D + inner[None, :])
        total = _product(total, x, w, TOKENS, WIDE_COLUMNS, CHUNK, SPLIT)
    total = _folded(total, SPLIT) + tl.load(bias + column).to(tl.float32)[None, :]
    total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    tl.store(wide + token[:, None] * F + column[None, :], total.to(kind), mask=valid[:, None])


@triton.jit
def _finish(
    item, token, token_end, owners, row, row_end, layer, norm, states, parts, vectors, exits, capacity,
    EPS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Pools the last layer for the rows that are still there; `item` is a chunk of columns."""
    kind: tl.constexpr = states.dtype.element_ty
    token, valid = _places(token, token_end, TOKENS, INTERPRETED)
    row, row_valid = _places(row, row_end, 16, INTERPRETED)
    owner = tl.load(owners + token, mask=valid, other=-1)
    mean, deviation = _combined(parts, token, valid, capacity, EPS, D, COLUMNS, triton.next_power_of_2(D // COLUMNS))
    left_at = tl.load(exits + row, mask=row_valid, other=-1, cache_modifier=".cg")
    active = row_valid & ((left_at == 0) | (left_at == layer))
    belongs = owner[None, :] == row[:, None]
    share = 1.0 / tl.maximum(tl.sum(belongs.to(tl.float32), 1), 1.0)
    column = item * CHUNK + tl.arange(0, CHUNK)
    x = _normed(states, token, valid, column, mean, deviation, norm, D).to(kind)
    pooled = tl.dot(belongs.to(kind), x) * share[:, None]
    tl.store(vectors + row[:, None] * D + column[None, :], pooled, mask=active[:, None])
    if item == 0:
        tl.store(exits + row, layer, mask=active)
