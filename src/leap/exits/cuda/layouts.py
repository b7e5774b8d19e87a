"""The choice of tiles and blocks for a batch, from measured times."""

from collections.abc import Sequence
from typing import NamedTuple

from leap.exits.cuda.tiles import Layout, TileShape, packed_tiles, tile_shape
from leap.models.packed_encoder import EncoderConfig


class Choice(NamedTuple):
    """Tiles of 16 times `rows16` tokens, `members` blocks each, a block's `columns` as in TileShape."""

    rows16: int
    columns: tuple[int, int, int]
    members: int


# The fastest first: all tiles at once on one H200, 12 layers of 384
# (results/2026-11-28-h200-fused-layouts/times.jsonl; milliseconds at full depth behind each).
CHOICES = (
    Choice(1, (8, 32, 8), 48),  # .172
    Choice(1, (16, 32, 16), 24),  # .207
    Choice(2, (8, 32, 8), 48),  # .237
    Choice(1, (16, 32, 16), 16),  # .260
    Choice(2, (16, 64, 16), 24),  # .273
    Choice(4, (8, 32, 8), 48),  # .375
    Choice(1, (16, 32, 16), 8),  # .379
    Choice(4, (16, 64, 16), 24),  # .404
    Choice(4, (32, 128, 32), 12),  # .491
    Choice(2, (16, 64, 16), 8),  # .515
    Choice(4, (32, 128, 32), 8),  # .790
    Choice(4, (32, 128, 32), 4),  # 1.108, and for more tiles than run at once
)


def shapes(config: EncoderConfig) -> list[TileShape]:
    made = (tile_shape(choice.rows16, config, choice.columns) for choice in CHOICES)
    return list(dict.fromkeys(shape for shape in made if shape is not None))


def longest_row(config: EncoderConfig) -> int:
    """Return the most tokens of a row; 0 where the kernel does not compute the model at all."""
    return max((shape.tokens for shape in shapes(config)), default=0)


def choose_layout(lengths: Sequence[int], config: EncoderConfig, processors: int) -> Layout:
    """Choose the fastest layout whose tiles all run at once; else the last, its groups taking tiles in turn.

    `processors` is the device's number; a block keeps one busy. Raises ValueError where a row is longer than the
    largest tile.
    """
    shapes_of = [(choice.members, tile_shape(choice.rows16, config, choice.columns)) for choice in CHOICES]
    fitting = [(members, shape) for members, shape in shapes_of if shape and shape.tokens >= max(lengths)]
    if not fitting:
        raise ValueError(f"a row of {max(lengths)} tokens does not fit the largest tile")
    for members, shape in fitting:
        if shape.tokens * (processors // members) < sum(lengths):
            continue
        layout = layout_of(lengths, shape, processors, members)
        if layout.groups == len(layout.tiling) and layout.members == members:
            return layout
    members, shape = fitting[-1]
    return layout_of(lengths, shape, processors, members)


def layout_of(lengths: Sequence[int], shape: TileShape, processors: int, members: int) -> Layout:
    """Lay a batch out in tiles of one shape, with `members` blocks each, or as many as there are processors."""
    tiling = packed_tiles(lengths, shape.tokens)
    members = min(members, processors)
    return Layout(shape, tiling, min(len(tiling), processors // members), members)
