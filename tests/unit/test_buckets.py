"""Sizes of the graphed path's buffers, and how a batch lies in them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leap.exits.cuda.buckets import MOST_TOKENS, Bucket, Level, Shape, numbers_of, shape_of
from leap.models.batches import pack
from leap.models.packed_encoder import Encoder, EncoderConfig

CONFIG = EncoderConfig(layers=3, width=8, heads=2, intermediate=8, vocabulary=50, positions=64)


@given(rows=st.integers(1, 2048), length=st.integers(1, 128))
def test_a_batch_fits_its_bucket_and_little_is_idle(rows: int, length: int) -> None:
    tokens = min(rows * length, MOST_TOKENS)
    shape = shape_of(rows, tokens, length, 2)
    assert rows <= shape.rows < 2 * rows
    assert tokens <= shape.tokens <= max(64, tokens * 2 ** (1 / 8) + 16)
    assert length <= shape.longest <= 128
    levels = shape.levels()
    assert levels[0] == shape
    for larger, smaller in pairwise(levels):
        assert smaller.rows < larger.rows
        assert smaller.tokens < larger.tokens


def test_sizes_by_hand() -> None:
    assert shape_of(32, 4096, 128, 2) == Shape(32, 4096, 128, 2)
    assert shape_of(33, 4097, 20, 3) == Shape(64, 4480, 32, 3)
    assert shape_of(1, 3, 3, 2) == Shape(1, 64, 16, 2)
    assert [(level.rows, level.tokens) for level in Shape(32, 4096, 128, 2).levels()] == [
        (32, 4096),
        (24, 3072),
        (16, 2048),
        (12, 1536),
        (8, 1024),
        (4, 512),
    ]
    assert len(Shape(1, 128, 128, 2).levels()) == 1


@pytest.mark.parametrize(("rows", "tokens", "longest"), [(2049, 4098, 2), (8, 2**15 + 1, 2), (1, 257, 257)])
def test_what_fits_no_bucket(rows: int, tokens: int, longest: int) -> None:
    with pytest.raises(ValueError, match="fit no bucket"):
        shape_of(rows, tokens, longest, 2)


def test_a_batch_in_its_bucket() -> None:
    batch = pack([[7], [8, 9], [5, 6, 4]])
    shape = Shape(4, 64, 16, 2)
    level = Level(shape, Encoder(CONFIG))
    level.numbers.copy_(numbers_of(batch, shape))
    assert level.offsets.tolist() == [0, 1, 3, 6, 6]
    assert level.left.tolist() == [0, 0, 0, -1]
    assert level.names.tolist() == [0, 1, 2, 0]
    assert level.ids[:6].tolist() == [7, 8, 9, 5, 6, 4]
    assert level.positions[:6].tolist() == [0, 0, 1, 0, 1, 2]
    assert not level.ids[6:].any()
    same = level.batch()
    assert (same.ids.tolist(), same.groups) == (batch.ids.tolist(), batch.groups)


def test_a_flag_of_another_run_says_nothing() -> None:
    bucket = Bucket(Shape(4, 64, 16, 2), Encoder(CONFIG))
    bucket.runs = 3
    bucket.flags[2] = (2 << 13 | 4) << 17 | 60
    assert bucket.read_flag(2) is None
    bucket.flags[2] = (3 << 13 | 4) << 17 | 60
    assert bucket.read_flag(2) == (4, 60)
    bucket.flags[2] = 3 << 30
    assert bucket.read_flag(2) == (0, 0)
