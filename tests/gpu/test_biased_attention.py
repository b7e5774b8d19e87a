"""Packed attention with a bias by relative position against its reference, on a GPU.

Without one, `TRITON_INTERPRET=1` runs the same kernels on a CPU where Triton is installed.
"""

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, MARKS

from leap.models.kernels import varlen
from leap.models.packed_encoder import attention
from leap.models.relative_bias import RelativeBias, by_places

pytestmark = MARKS

SHORT = [5, 16, 17, 33, 1, 64, 20, 100, 31, 2]
IDLE = 7
# Half precision, sums in float32.
LEAST = 1e-2


class Case:
    """Random rows, a random bias, and what attention and its gradients are in float64."""

    def __init__(self, heads: int, size: int, lengths: list[int], dtype: torch.dtype, room: int = 0) -> None:
        torch.manual_seed(0)
        self.heads, self.longest = heads, max(lengths)
        self.offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=DEVICE)
        tokens, width = sum(lengths) + IDLE, heads * size
        self.qkv = torch.randn(tokens, 3 * width).to(DEVICE, dtype).requires_grad_()
        self.bias = torch.randn(heads, 2 * (self.longest + room) - 1).to(DEVICE).requires_grad_()
        self.given = torch.randn(tokens, width).to(DEVICE, dtype)
        self.given[-IDLE:] = 0
        qkv, bias = (part.detach().double().cpu().requires_grad_() for part in (self.qkv, self.bias))
        parts, places = [], by_places(bias)
        for row in qkv[:-IDLE].split(lengths):
            query, key, value = row.view(1, len(row), 3, heads, size).permute(2, 0, 3, 1, 4)
            attended = attention(query, key, value, places[:, : len(row), : len(row)])
            parts.append(attended.transpose(1, 2).reshape(len(row), -1))
        self.wanted = torch.cat(parts)
        self.wanted.backward(self.given[:-IDLE].double().cpu())
        assert qkv.grad is not None
        assert bias.grad is not None
        self.by_qkv, self.by_bias = qkv.grad, bias.grad

    def attend(self) -> Tensor:
        return varlen.varlen_attention(self.qkv, self.offsets, self.heads, self.longest, self.bias)


@pytest.mark.parametrize(("heads", "size"), [(4, 32), (3, 64), (2, 16), (1, 128)])
@pytest.mark.parametrize(
    "lengths", [SHORT, [1], [12] * 5, [128, 100], [200, 3, 256, 129], [300, 2, 65], [*[1] * 17, 66, 2, 90]]
)
def test_attention_and_its_gradients_are_the_references(heads: int, size: int, lengths: list[int]) -> None:
    case = Case(heads, size, lengths, torch.float16)
    result = case.attend()
    result.backward(case.given)
    assert _error(result[:-IDLE], case.wanted) < LEAST
    assert case.qkv.grad is not None
    assert case.bias.grad is not None
    for part, wanted in zip(case.qkv.grad[:-IDLE].chunk(3, 1), case.by_qkv[:-IDLE].chunk(3, 1), strict=True):
        if wanted.count_nonzero():  # a row of one token has no gradient but its value's
            assert _error(part, wanted) < LEAST
        else:
            assert part.abs().max() < LEAST
    assert case.bias.grad.dtype == torch.float32
    _assert_same_sums(case.bias.grad, case.by_bias)
    assert result[-IDLE:].count_nonzero() == 0
    assert case.qkv.grad[-IDLE:].count_nonzero() == 0


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("lengths", [SHORT, [70, 128, 3], [200, 3, 256, 129], [1], [256], [300, 7]])
def test_attention_in_inference_is_the_reference(size: int, lengths: list[int]) -> None:
    case = Case(2, size, lengths, torch.float16)
    for rows in (1, 300):  # few rows go to one tile, many to one of their size
        if rows > 1 and DEVICE == "cpu":
            continue
        lengths_of_all = torch.tensor(lengths * rows).cumsum(0)
        offsets = torch.tensor([0, *lengths_of_all], dtype=torch.int32, device=DEVICE)
        qkv = torch.cat([case.qkv.detach()[:-IDLE]] * rows + [case.qkv.detach()[-IDLE:]])
        with torch.inference_mode():
            result = varlen.varlen_attention(qkv, offsets, 2, max(lengths), case.bias.half())
        assert _error(result[: sum(lengths)], case.wanted) < LEAST
        assert _error(result[-IDLE - sum(lengths) : -IDLE], case.wanted) < LEAST


def test_a_wider_table_of_distances_gives_the_same() -> None:
    """Of a graph's bucket, whose rows are shorter than its bound."""
    case = Case(2, 64, [3, 40, 150], torch.float16, room=50)
    result = case.attend()
    result.backward(case.given)
    assert _error(result[:-IDLE], case.wanted) < LEAST
    assert case.bias.grad is not None
    _assert_same_sums(case.bias.grad, case.by_bias)
    assert case.bias.grad[:, :50].count_nonzero() == 0
    assert case.bias.grad[:, -50:].count_nonzero() == 0


def test_the_gradient_of_the_bias_is_the_same_every_time() -> None:
    case = Case(3, 64, [150, *SHORT], torch.float16)
    grads = []
    for _ in range(3):
        case.bias.grad = None
        case.attend().backward(case.given)
        assert case.bias.grad is not None
        grads.append(case.bias.grad)
    assert grads[0].equal(grads[1])
    assert grads[0].equal(grads[2])


def test_the_learned_table_gets_its_gradient_by_bucket() -> None:
    torch.manual_seed(0)
    relative = RelativeBias(32, 2, 200).to(DEVICE)
    assert not [name for name in relative.state_dict() if name != "table.weight"]
    case = Case(2, 32, [9, 180], torch.float16)
    bias = relative(case.longest)
    assert bias.shape == case.bias.shape
    varlen.varlen_attention(case.qkv, case.offsets, 2, case.longest, bias).backward(case.given)
    result = relative.table.weight.grad
    copy = torch.nn.Embedding.from_pretrained(relative.table.weight.detach().double().cpu(), freeze=False)
    parts, places = [], by_places(copy(relative.buckets.cpu()).T[:, 20:-20])
    for row in case.qkv.detach().double().cpu()[:-IDLE].split([9, 180]):
        query, key, value = row.view(1, len(row), 3, 2, 32).permute(2, 0, 3, 1, 4)
        attended = attention(query, key, value, places[:, : len(row), : len(row)])
        parts.append(attended.transpose(1, 2).reshape(len(row), -1))
    torch.cat(parts).backward(case.given[:-IDLE].double().cpu())
    assert result is not None
    assert copy.weight.grad is not None
    _assert_same_sums(result, copy.weight.grad)


def test_the_operator_is_well_formed() -> None:
    case = Case(2, 32, SHORT, torch.float16)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (case.qkv, case.bias, case.offsets, 2, 100)
    torch.library.opcheck(torch.ops.leap.biased_attention, arguments, test_utils=checks)


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double().cpu() - wanted).detach().norm() / wanted.detach().norm())


def _assert_same_sums(found: Tensor, wanted: Tensor) -> None:
    """A row of one token gives its bias no gradient at all, so there only rounding is left."""
    assert (found.double().cpu() - wanted).norm() < LEAST * wanted.norm() + 1e-4
