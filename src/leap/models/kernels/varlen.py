"""Attention and means over packed rows on a GPU, one launch for rows of any length.

`torch.library` operators, so that `torch.compile` and CUDA graphs take them whole. Tokens that belong to no
row (a batch padded at its end to a fixed size) get zeros, forward and backward; in inference mode anything.
Their reference implementations are `attention` and `mean_pool`'s loop over groups in `leap.models.packed_encoder`.
"""

from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# Rows up to this long lie in one tile of our own kernels; longer batches go to PyTorch's flash attention.
LONGEST_TILE = 256
TILES = (16, 32, 64, 128, LONGEST_TILE)
HEAD_SIZES = (16, 32, 64, 128)
# The largest tile's gradient holds for heads up to this wide: at 64 it was 4 % off on an H200.
LONGEST_TILE_TRAINED = {16: LONGEST_TILE, 32: LONGEST_TILE}
_WARPS = {16: 1, 32: 1, 64: 4, 128: 8, LONGEST_TILE: 8}
# One warp's registers hold no gradient of 32 tokens by 64.
_WIDE_BIASED_WARPS = {32: 4}
# Queries at a time, of each tile that does not take all at once; with more, registers spill on sm_90.
_QUERIES = {LONGEST_TILE: 16}
# With a bias, which PyTorch's flash attention does not take, longer rows go by blocks of so many queries and keys.
LONG_BLOCK = 64
# Programs a head and block that share the rows.
LONG_PROGRAMS = 16
# Up to so many rows times heads, in inference, all rows go to the longest's tile: what that wastes on short
# ones is less than the launches of the smaller tiles, some 2 microseconds each in every layer.
ONE_LAUNCH = 512


def available(device: torch.device) -> bool:
    """Tell whether a device computes batches by their offsets: CUDA, with PyTorch's Triton."""
    return device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def handles(qkv: Tensor, heads: int) -> bool:
    """Tell whether these operators compute an input: half precision on CUDA, a head size tiles can hold."""
    half = qkv.dtype in (torch.float16, torch.bfloat16)
    return qkv.is_cuda and half and qkv.shape[-1] // 3 // heads in HEAD_SIZES


def varlen_attention(qkv: Tensor, offsets: Tensor, heads: int, longest: int, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q k^T / sqrt(d) + bias) v within each row, [N, D].

    Args:
        qkv: [N, 3 D], float16 or bfloat16, on CUDA.
        offsets: [B + 1] int32, where each row starts, and the end of the last.
        heads: of width D / heads each.
        longest: an upper bound of the rows' lengths; decides which kernels are launched.
        bias: [heads, 2 M - 1] with M at least the longest row's length, by the key's place minus the query's,
            which is M - 1 to the left of its column; of any floating-point type, added in float32.
    """
    if bias is not None:
        return torch.ops.leap.biased_attention(qkv, bias, offsets, heads, longest)  # type: ignore[no-any-return]
    size = qkv.shape[1] // 3 // heads
    trained = LONGEST_TILE_TRAINED.get(size, 128) if torch.is_grad_enabled() else LONGEST_TILE
    if longest <= trained:
        return torch.ops.leap.short_attention(qkv, offsets, heads, longest)  # type: ignore[no-any-return]
    return _flash_attention(qkv, offsets, heads, longest)


def _flash_attention(qkv: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Flash attention leaves idle tokens and their gradients as they lie in memory; a number that is none
    # there would reach the weights' gradients.
    trained = torch.is_grad_enabled()
    idle = torch.arange(len(qkv), device=qkv.device)[:, None] >= offsets[-1]
    given = qkv.masked_fill(idle, 0) if trained else qkv
    query, key, value = given.view(len(qkv), 3, heads, -1).unbind(1)
    mixed: Any = varlen_attn(query, key, value, offsets, offsets, longest, longest)
    out: Tensor = mixed.reshape(len(qkv), -1)
    return out.masked_fill(idle, 0) if trained else out


def adds_and_norms(states: Tensor, weight: Tensor) -> bool:
    """Tell whether `add_norm` computes these states: half precision on CUDA, in inference, weights of their kind.

    Not within `torch.compile`, which fuses a norm with its neighbours.
    """
    if torch.compiler.is_compiling():  # first: the compiler's graph would break at inference mode's test
        return False
    half = states.dtype in (torch.float16, torch.bfloat16) and states.dtype == weight.dtype
    return half and torch.is_inference_mode_enabled() and available(states.device)


def add_norm(states: Tensor, addition: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute the layer norm of states + addition in one kernel; [N, D] in half precision on CUDA, no gradient."""
    out = torch.empty_like(states)
    _kernels().add_norm_forward[(len(states),)](
        states, addition.contiguous(), weight, bias, out, eps,
        WIDTH=states.shape[1], BLOCK=power_of_two(states.shape[1]), num_warps=4,
    )  # fmt: skip
    return out


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def segment_mean(states: Tensor, offsets: Tensor) -> Tensor:
    """Compute the mean of each row's tokens; [N, D] on CUDA and [B + 1] int32 to [B, D] float32."""
    return torch.ops.leap.segment_mean(states, offsets)  # type: ignore[no-any-return]


@cache
def _kernels() -> ModuleType:
    # Triton comes with PyTorch's CUDA builds only.
    from leap.models.kernels import varlen_kernels

    return varlen_kernels


def _launch(
    kernel: Any,
    tensors: list[Tensor | None],
    offsets: Tensor,
    heads: int,
    longest: int,
    bias: Tensor | None = None,
) -> int | None:
    """Launch a kernel for each tile; return the length from which rows with a bias are left, None for no row."""
    qkv, rows = tensors[0], len(offsets) - 1
    assert qkv is not None
    size = qkv.shape[1] // 3 // heads
    middle = 0 if bias is None else bias.shape[1] // 2
    largest = LONGEST_TILE if bias is None else LONG_BLOCK
    warps = _WIDE_BIASED_WARPS if bias is not None and size >= 64 else {}
    low = 0
    # One program clears all idle tokens: nobody reads them where nothing is trained.
    inference = torch.is_inference_mode_enabled()
    tokens = 0 if inference else len(qkv)
    for tile in TILES:
        if tile > largest:
            return low
        if tile < longest and inference and rows * heads <= ONE_LAUNCH:
            continue
        per = next(per for per in (4, 3, 2, 1) if heads % per == 0) if tile <= 32 else 1
        grid = (rows + 1, heads // per)
        kernel[grid](
            *tensors, offsets, bias, middle, size**-0.5, rows, tokens, HEADS=heads, D=size, TILE=tile,
            LOW=low, PER=per, QUERIES=_QUERIES.get(tile, tile), num_warps=warps.get(tile, _WARPS[tile]),
        )  # fmt: skip
        if tile >= longest:
            return None
        low = tile
    return low


def _launch_long(
    kernel: Any,
    tensors: list[Tensor],
    offsets: Tensor,
    bias: Tensor,
    heads: int,
    blocks: int,
    low: int,
    *tokens: int,
) -> None:
    size, rows = tensors[0].shape[1] // 3 // heads, len(offsets) - 1
    kernel[min(rows, LONG_PROGRAMS), heads, blocks](
        *tensors, offsets, bias, bias.shape[1] // 2, size**-0.5, rows, *tokens, HEADS=heads, D=size,
        BLOCK=LONG_BLOCK, LOW=low, num_warps=4, num_stages=1,
    )  # fmt: skip


@torch.library.custom_op("leap::short_attention", mutates_args=())
def _short_attention(qkv: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    _launch(_kernels().attention_forward, [qkv, out], offsets, heads, longest)
    return out


@torch.library.custom_op("leap::short_attention_backward", mutates_args=())
def _short_attention_backward(qkv: Tensor, grad: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    out = torch.empty_like(qkv)
    _launch(_kernels().attention_backward, [qkv, grad.contiguous(), out, None], offsets, heads, longest)
    return out


@torch.library.custom_op("leap::biased_attention", mutates_args=())
def _biased_attention(qkv: Tensor, bias: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    out, bias = qkv.new_empty(len(qkv), qkv.shape[1] // 3), bias.contiguous()
    low = _launch(_kernels().attention_forward, [qkv, out], offsets, heads, longest, bias)
    if low is not None:
        blocks = -(-longest // LONG_BLOCK)
        _launch_long(_kernels().long_forward, [qkv, out], offsets, bias, heads, blocks, low)
    return out


@torch.library.custom_op("leap::biased_attention_backward", mutates_args=())
def _biased_attention_backward(
    qkv: Tensor, bias: Tensor, grad: Tensor, offsets: Tensor, heads: int, longest: int
) -> tuple[Tensor, Tensor]:
    grad, bias, out = grad.contiguous(), bias.contiguous(), torch.empty_like(qkv)
    by_row = qkv.new_zeros(len(offsets) - 1, *bias.shape, dtype=torch.float32)
    low = _launch(_kernels().attention_backward, [qkv, grad, out, by_row], offsets, heads, longest, bias)
    if low is not None:
        blocks, tokens = -(-longest // LONG_BLOCK), len(qkv)
        stats = qkv.new_empty(2, tokens, heads, dtype=torch.float32)
        kernels, common = _kernels(), (offsets, bias, heads)
        _launch_long(kernels.long_by_query, [qkv, grad, out, stats], *common, blocks, low, tokens)
        _launch_long(kernels.long_by_key, [qkv, grad, out, stats], *common, blocks, low, tokens)
        _launch_long(kernels.long_by_distance, [qkv, grad, by_row, stats], *common, 2 * blocks, low, tokens)
    return out, by_row.sum(0).to(bias.dtype)


@torch.library.custom_op("leap::segment_mean", mutates_args=())
def _segment_mean(states: Tensor, offsets: Tensor) -> Tensor:
    rows, width = len(offsets) - 1, states.shape[1]
    out = states.new_empty(rows, width, dtype=torch.float32)
    _kernels().mean_forward[(rows, -(-width // 128))](states, out, offsets, WIDTH=width, BLOCK=128, num_warps=2)
    return out


@torch.library.custom_op("leap::segment_mean_backward", mutates_args=())
def _segment_mean_backward(grad: Tensor, offsets: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    rows, width = grad.shape
    out = torch.empty(tokens, width, dtype=dtype, device=grad.device)
    _kernels().mean_backward[(rows + 1, -(-width // 128))](
        grad.contiguous(), out, offsets, rows, tokens, WIDTH=width, BLOCK=128, num_warps=2
    )
    return out


@_short_attention.register_fake
def _(qkv: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    return qkv.new_empty(len(qkv), qkv.shape[1] // 3)


@_short_attention_backward.register_fake
def _(qkv: Tensor, grad: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    return torch.empty_like(qkv)


@_biased_attention.register_fake
def _(qkv: Tensor, bias: Tensor, offsets: Tensor, heads: int, longest: int) -> Tensor:
    return qkv.new_empty(len(qkv), qkv.shape[1] // 3)


@_biased_attention_backward.register_fake
def _(qkv: Tensor, bias: Tensor, grad: Tensor, offsets: Tensor, heads: int, longest: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), bias.new_empty(bias.shape)


@_segment_mean.register_fake
def _(states: Tensor, offsets: Tensor) -> Tensor:
    return states.new_empty(len(offsets) - 1, states.shape[1], dtype=torch.float32)


@_segment_mean_backward.register_fake
def _(grad: Tensor, offsets: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    return grad.new_empty(tokens, grad.shape[1], dtype=dtype)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv, offsets, ctx.heads, ctx.longest = inputs
    ctx.save_for_backward(qkv, offsets)


def _attention_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    qkv, offsets = ctx.saved_tensors
    given = torch.ops.leap.short_attention_backward(qkv, grad, offsets, ctx.heads, ctx.longest)
    return given, None, None, None


def _keep_biased(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv, bias, offsets, ctx.heads, ctx.longest = inputs
    ctx.save_for_backward(qkv, bias, offsets)


def _biased_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    qkv, bias, offsets = ctx.saved_tensors
    by_qkv, by_bias = torch.ops.leap.biased_attention_backward(qkv, bias, grad, offsets, ctx.heads, ctx.longest)
    return by_qkv, by_bias, None, None, None


def _keep_mean(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    states, offsets = inputs
    ctx.tokens, ctx.dtype = len(states), states.dtype
    ctx.save_for_backward(offsets)


def _mean_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (offsets,) = ctx.saved_tensors
    return torch.ops.leap.segment_mean_backward(grad, offsets, ctx.tokens, ctx.dtype), None


_short_attention.register_autograd(_attention_gradient, setup_context=_keep_attention)
_biased_attention.register_autograd(_biased_gradient, setup_context=_keep_biased)
_segment_mean.register_autograd(_mean_gradient, setup_context=_keep_mean)
