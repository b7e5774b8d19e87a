"""The kernel of exit heads against its reference, on a GPU.

Without one, `TRITON_INTERPRET=1` runs the same kernel on a CPU where Triton is installed.
"""

import pytest
import torch
from triton_device import DEVICE, MARKS

from leap.models.exit_heads import ExitHeads

pytestmark = MARKS


@pytest.mark.parametrize(
    ("rows", "width", "layers"), [(2, 32, 3), (5, 96, 4), (33, 384, 12), (7, 130, 6), (64, 768, 12)]
)
def test_every_row_is_mapped_by_its_own_layer(rows: int, width: int, layers: int) -> None:
    torch.manual_seed(0)
    heads = ExitHeads(torch.eye(width) + 0.1 * torch.randn(layers - 1, width, width))
    vectors, exits = torch.randn(rows, width), torch.randint(1, layers + 1, (rows,))
    exits[0], exits[-1] = layers, 1
    wanted = heads.at_exits(vectors, exits)
    found = heads.to(torch.device(DEVICE)).by_kernel(vectors.to(DEVICE), exits.to(DEVICE)).cpu()
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)
    assert (found[exits == layers] == vectors[exits == layers]).all()  # the last layer's as they are


def test_a_row_that_has_not_left_stays_as_it_is() -> None:
    heads, vectors = ExitHeads(torch.ones(2, 32, 32, device=DEVICE)), torch.randn(3, 32, device=DEVICE)
    found = heads.by_kernel(vectors, torch.tensor([0, 1, 0], device=DEVICE))
    assert (found[[0, 2]] == vectors[[0, 2]]).all()
    assert (found[1] != vectors[1]).all()
