import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leap.models.batches import Group, by_length, grouped, pack
from leap.models.packed_encoder import mean_pool

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def rows_of(wanted: list[int]) -> list[list[int]]:
    """A row of each length; no token comes twice."""
    tokens = iter(range(1000))
    return [[next(tokens) for _ in range(length)] for length in wanted]


def test_pack_lays_rows_one_after_the_other() -> None:
    batch = pack([[7], [8, 9], [5, 6], [1, 2, 3]])
    assert batch.ids.tolist() == [7, 8, 9, 5, 6, 1, 2, 3]
    assert batch.positions.tolist() == [0, 0, 1, 0, 1, 0, 1, 2]
    assert batch.groups == (Group(0, 1, 1), Group(1, 2, 2), Group(5, 1, 3))
    assert batch.rows == 4


def test_groups_of_no_rows() -> None:
    assert grouped([]) == ()


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [3]], [[], [1]]])
def test_pack_refuses_what_is_not_in_ascending_length(rows: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="ascending length"):
        pack(rows)


@given(lengths, st.integers(1, 5))
def test_by_length_covers_every_row_once_longest_first(wanted: list[int], batch_size: int) -> None:
    rows = rows_of(wanted)
    seen, longest = [], []
    for index, batch in by_length(rows, batch_size):
        assert batch.rows == len(index) <= batch_size
        assert batch.ids.tolist() == [token for row in index for token in rows[row]]
        longest.append(batch.groups[-1].length)
        seen += index
    assert sorted(seen) == list(range(len(rows)))
    assert longest == sorted(longest, reverse=True)


@given(lengths, st.data())
def test_keep_is_packing_the_kept_rows(wanted: list[int], data: st.DataObject) -> None:
    rows = rows_of(sorted(wanted))
    staying = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)).filter(any), label="kept")
    states = torch.arange(sum(wanted)).float()[:, None].expand(-1, 2)
    batch, left = pack(rows).keep(torch.tensor(staying), states)
    expected = pack([row for row, stays in zip(rows, staying, strict=True) if stays])
    assert batch.ids.equal(expected.ids)
    assert batch.positions.equal(expected.positions)
    assert batch.groups == expected.groups
    # Token number i has state i, and ids count the tokens.
    assert left[:, 0].long().equal(batch.ids)


def test_mean_pool_by_hand() -> None:
    batch = pack([[0], [0, 0], [0, 0]])
    states = torch.tensor([[5.0, 1.0], [1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [2.0, -2.0]])
    expected = [[5.0, 1.0], [2.0, 3.0], [1.0, -1.0]]
    assert mean_pool(states, batch).tolist() == expected
    with torch.inference_mode():
        assert mean_pool(states, batch).tolist() == expected


def test_mean_pool_adds_in_float32() -> None:
    # In float16, 2048 + 1 is 2048: the sum of these would lose every later token.
    states = torch.tensor([[2048.0]] + [[1.0]] * 4, dtype=torch.float16)
    pooled = mean_pool(states, pack([[0] * 5]))
    assert pooled.dtype == torch.float32
    assert pooled.item() == pytest.approx(2052 / 5)
