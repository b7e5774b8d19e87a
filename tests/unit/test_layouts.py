"""Which tiles and programs a batch gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.exits.cuda.fused import fits
from leap.exits.cuda.layouts import choose_layout, longest_row, shapes
from leap.exits.cuda.tiles import MOST_ROWS, SHARED_BYTES, packed_tiles, tile_shape
from leap.models.batches import pack
from leap.models.packed_encoder import EncoderConfig


def config(width: int = 384, heads: int = 12, intermediate: int | None = None) -> EncoderConfig:
    return EncoderConfig(12, width, heads, intermediate or 4 * width, vocabulary=100, positions=512)


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=80).map(sorted))
def test_tiles_hold_all_rows_whole_and_in_order(lengths: list[int]) -> None:
    tiling = packed_tiles(lengths, 64)
    assert (tiling.rows[0], tiling.rows[-1]) == (0, len(lengths))
    for first, last in zip(tiling.rows, tiling.rows[1:], strict=False):
        assert 1 <= last - first <= MOST_ROWS
        assert sum(lengths[first:last]) == tiling.starts[last] - tiling.starts[first] <= 64


def test_a_tile_is_full_before_the_next_begins() -> None:
    assert packed_tiles([14, 14, 14, 14, 14], 64).rows == (0, 4, 5)
    assert packed_tiles([16, 16, 16], 16).rows == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("rows", "length", "tokens", "groups", "members"),
    [
        (1, 14, 16, 1, 48),
        (2, 14, 16, 2, 48),
        (8, 14, 16, 8, 16),
        (32, 14, 64, 8, 12),
        (1, 20, 32, 1, 48),
        (1, 64, 64, 1, 48),
        (128, 14, 64, 32, 4),
        # More tiles than run at once: the groups take them in turn.
        (200, 14, 64, 33, 4),
    ],
)
def test_the_measured_choice(rows: int, length: int, tokens: int, groups: int, members: int) -> None:
    layout = choose_layout([length] * rows, config(), 132)
    assert (layout.shape.tokens, layout.groups, layout.members) == (tokens, groups, members)
    assert layout.groups * layout.members <= 132


def test_a_row_that_fits_no_tile_is_refused() -> None:
    assert longest_row(config()) == 64
    with pytest.raises(ValueError, match="65 tokens"):
        choose_layout([3, 65], config(), 132)
    assert fits(pack([[1] * 64]), config())
    assert not fits(pack([[1] * 65]), config())
    assert not fits(pack([[1] * 64] * 33), config())
    assert not fits(pack([[1] * 64]), config(), most_tokens=63)


@pytest.mark.parametrize("odd", [config(312, 12), config(384, 24), config(384, 12, 1000), config(192, 6)])
def test_models_that_do_not_divide_have_no_shapes(odd: EncoderConfig) -> None:
    assert shapes(odd) == []


@pytest.mark.parametrize("even", [config(), config(128, 4), config(768, 12), config(256, 8)])
def test_shapes_fit_shared_memory_and_divide_the_model(even: EncoderConfig) -> None:
    assert shapes(even)
    for shape in shapes(even):
        assert shape.shared_bytes(even) <= SHARED_BYTES
        for warps in shape.warps:
            assert 8 % warps == 0


def test_sums_of_many_tokens_are_split_over_warps() -> None:
    small, large = tile_shape(1, config(), (8, 32, 8)), tile_shape(4, config(), (32, 128, 32))
    assert small is not None
    assert large is not None
    assert small.warps == (1, 1, 1, 1)
    # 64 tokens by 96 columns of queries, keys and values: 192 sums a thread on one warp, 48 on four.
    assert large.warps == (4, 1, 4, 1)
