"""Packed weights give what the usual product gives, and follow the weights."""

import pytest
import torch
from torch import nn

from leap.models.small_batches import MOST_ROWS, SmallBatchLinear, pack_for_small_batches


@pytest.fixture
def layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    made = nn.ModuleDict({"wide": nn.Linear(384, 512), "narrow": nn.Linear(128, 512)})
    pack_for_small_batches(made)
    return made


def test_wide_layers_are_replaced_and_keep_their_weights(layers: nn.ModuleDict) -> None:
    assert type(layers["wide"]) is SmallBatchLinear
    assert type(layers["narrow"]) is nn.Linear
    assert set(layers.state_dict()) == {"wide.weight", "wide.bias", "narrow.weight", "narrow.bias"}


@pytest.mark.parametrize("rows", [1, 14, MOST_ROWS, MOST_ROWS + 1])
def test_the_product_is_the_usual_one(layers: nn.ModuleDict, rows: int) -> None:
    wide, states = layers["wide"], torch.randn(rows, 384)
    wanted = states.double() @ wide.weight.double().T + wide.bias.double()
    with torch.inference_mode():
        torch.testing.assert_close(wide(states).double(), wanted, atol=1e-5, rtol=1e-5)
    assert (wide._packed is not None) == (rows <= MOST_ROWS)


def test_changed_weights_are_packed_anew(layers: nn.ModuleDict) -> None:
    wide, states = layers["wide"], torch.randn(3, 384)
    with torch.inference_mode():
        before = wide(states)
    with torch.no_grad():
        wide.weight.mul_(2)
    with torch.inference_mode():
        torch.testing.assert_close(wide(states) - wide.bias, 2 * (before - wide.bias))
    wide.weight = nn.Parameter(torch.zeros(512, 384))
    with torch.inference_mode():
        torch.testing.assert_close(wide(states), wide.bias.expand(3, -1))


def test_a_product_with_gradients_or_in_half_precision_is_the_usual_one(layers: nn.ModuleDict) -> None:
    wide = layers["wide"]
    wide(torch.randn(3, 384)).sum().backward()
    assert wide.weight.grad is not None
    half = wide.bfloat16()
    with torch.inference_mode():
        assert half(torch.randn(3, 384).bfloat16()).dtype == torch.bfloat16
    assert wide._packed is None
