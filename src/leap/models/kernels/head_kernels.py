"""Triton kernel of exit heads; its reference implementation is the loop of `leap.models.exit_heads.ExitHeads`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads"])
def map_rows(
    vectors, exits, maps, mapped, heads, D: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Maps each row by its exit layer's map; a program a row and OUTPUTS of its numbers.

    A row that has not left, at layer 0, stays as it is.
    Rows of one layer read the same map, which the L2 cache then holds: none is copied for a batched product.
    """
    row = tl.program_id(0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < D
    layer = tl.load(exits + row)
    if (layer > heads) | (layer < 1):
        value = tl.load(vectors + row * D + output, mask=is_output)
    else:
        own = maps + (layer - 1) * D * D
        # Summed over inputs only at the end: the loop then has no exchange between threads.
        total = tl.zeros((INPUTS, OUTPUTS), tl.float32)
        for first in range(0, D, INPUTS):
            given = first + tl.arange(0, INPUTS)
            vector = tl.load(vectors + row * D + given, mask=given < D, other=0.0)
            inside = (given < D)[:, None] & is_output[None, :]
            total += vector[:, None] * tl.load(own + given[:, None] * D + output[None, :], mask=inside, other=0.0)
        value = tl.sum(total, 0)
    tl.store(mapped + row * D + output, value, mask=is_output)
