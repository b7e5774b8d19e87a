"""The packed kernels against their reference implementations, on a GPU: gradients, idle tokens, compiled."""

import pytest
import torch
from torch import Tensor

from leap.models.kernels import varlen
from leap.models.packed_encoder import attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LENGTHS = [5, 16, 17, 33, 1, 64, 20, 100, 31, 2]
IDLE = 7


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def by_row(qkv: Tensor, lengths: list[int], heads: int) -> Tensor:
    """The reference in float64."""
    parts = []
    for row in qkv.double()[: sum(lengths)].split(lengths):
        query, key, value = row.view(1, len(row), 3, heads, -1).permute(2, 0, 3, 1, 4)
        parts.append(attention(query.cpu(), key.cpu(), value.cpu()).transpose(1, 2).reshape(len(row), -1))
    return torch.cat(parts)


@pytest.mark.parametrize(("heads", "size"), [(12, 32), (4, 32), (12, 64), (2, 16)])
@pytest.mark.parametrize("lengths", [LENGTHS, [12] * 9, [100, 128], [200, 3, 256, 129], [200, 3, 300]])
def test_attention_and_its_gradient_are_the_references(heads: int, size: int, lengths: list[int]) -> None:
    torch.manual_seed(0)
    tokens, width = sum(lengths) + IDLE, heads * size
    qkv = torch.randn(tokens, 3 * width, device="cuda").bfloat16().requires_grad_()
    reference = qkv.detach().double().requires_grad_()
    given = torch.randn(tokens, width, device="cuda").bfloat16()
    given[-IDLE:] = 0
    result = varlen.varlen_attention(qkv, offsets_of(lengths), heads, max(lengths))
    result.backward(given)
    wanted = by_row(reference, lengths, heads)
    wanted.backward(given[:-IDLE].double().cpu())
    assert _error(result[:-IDLE], wanted) < 1e-2
    assert qkv.grad is not None
    assert reference.grad is not None
    assert _error(qkv.grad[:-IDLE], reference.grad[:-IDLE]) < 1e-2
    assert result[-IDLE:].count_nonzero() == 0
    assert qkv.grad[-IDLE:].count_nonzero() == 0


@pytest.mark.parametrize("lengths", [LENGTHS, [100, 128, 3], [200, 3, 256, 129], [1], [256]])
def test_attention_in_inference_is_the_reference(lengths: list[int]) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths) + IDLE, 3 * 384, device="cuda").half()
    for rows in (1, 40):  # few rows go to one tile, many to one of their size
        many = lengths * rows
        repeated = torch.cat([qkv[:-IDLE]] * rows + [qkv[-IDLE:]])
        with torch.inference_mode():
            result = varlen.varlen_attention(repeated, offsets_of(many), 12, max(many))
        wanted = by_row(qkv, lengths, 12)
        assert _error(result[: sum(lengths)], wanted) < 1e-2
        assert _error(result[-IDLE - sum(lengths) : -IDLE], wanted) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [96, 384, 768, 1024])
def test_the_norm_of_a_sum_is_the_reference(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states, addition = (torch.randn(33, width, device="cuda").to(dtype) for _ in range(2))
    norm = torch.nn.LayerNorm(width, eps=1e-12).cuda().to(dtype).requires_grad_(False)
    norm.weight.normal_(1, 0.2)
    norm.bias.normal_()
    with torch.inference_mode():
        assert varlen.adds_and_norms(states, norm.weight)
        result = varlen.add_norm(states, addition, norm.weight, norm.bias, norm.eps)
        wanted = norm(states + addition)
    least = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(result, wanted, atol=least, rtol=least)
    assert not varlen.adds_and_norms(states, norm.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_and_their_gradient_are_the_references(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states = torch.randn(sum(LENGTHS) + IDLE, 384, device="cuda", dtype=dtype, requires_grad=True)
    result = varlen.segment_mean(states, offsets_of(LENGTHS))
    wanted = torch.stack([row.double().mean(0) for row in states[:-IDLE].split(LENGTHS)])
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5)
    given = torch.randn_like(result)
    result.backward(given)
    spread = [g.expand(n, -1) / n for g, n in zip(given, LENGTHS, strict=True)]
    assert states.grad is not None
    torch.testing.assert_close(states.grad[:-IDLE], torch.cat(spread).to(dtype), atol=1e-6, rtol=1e-2)
    assert states.grad[-IDLE:].count_nonzero() == 0


def test_the_operators_are_well_formed() -> None:
    qkv = torch.randn(sum(LENGTHS), 3 * 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.leap.short_attention, (qkv, offsets_of(LENGTHS), 2, 100), test_utils=checks)
    torch.library.opcheck(torch.ops.leap.segment_mean, (qkv, offsets_of(LENGTHS)), test_utils=checks)


def _error(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.to(found.device)
    return float((found.double() - wanted).norm() / wanted.norm())
