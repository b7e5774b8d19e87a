"""Which tiles and how many blocks for a batch, from measured times (docs/log.md)."""

from collections.abc import Sequence

from leap.exits.tiles import Layout, TileShape, packed_tiles, tile_shape
from leap.model.encoder import EncoderConfig

ROWS16 = (1, 2, 4, 8)
# The most blocks that a tile keeps busy, by its 16-token rows.
MOST_MEMBERS = {1: 48, 2: 24, 4: 16, 8: 16}
FEWEST_MEMBERS = 4


def shapes(config: EncoderConfig) -> list[TileShape]:
    """The kernel's shapes for a model, the smallest tiles first."""
    made = (tile_shape(rows16, config) for rows16 in ROWS16)
    return [shape for shape in made if shape is not None]


def choose_layout(lengths: Sequence[int], config: EncoderConfig, processors: int) -> Layout:
    """The smallest tiles of which all run at once with enough blocks each; else the largest.

    Args:
        lengths: of the rows.
        config: the model's.
        processors: of the device; a block keeps one busy.

    Raises:
        ValueError: a row is longer than the largest tile.
    """
    fitting = [shape for shape in shapes(config) if shape.tokens >= max(lengths)]
    if not fitting:
        raise ValueError(f"a row of {max(lengths)} tokens does not fit the largest tile")
    for shape in fitting:
        layout = layout_of(lengths, shape, processors)
        if layout.members >= MOST_MEMBERS[shape.rows16] or processors == 1:
            break
    return layout


def layout_of(
    lengths: Sequence[int], shape: TileShape, processors: int, members: int | None = None
) -> Layout:
    """A batch in tiles of one shape, with `members` blocks each, or as many as are of use."""
    tiling = packed_tiles(lengths, shape.tokens)
    fair = max(processors // len(tiling), FEWEST_MEMBERS)
    members = min(members or min(fair, MOST_MEMBERS[shape.rows16]), processors)
    return Layout(shape, tiling, min(len(tiling), processors // members), members)
