"""Which tiles and how many programs for a batch, from measured times (docs/log.md)."""

from collections.abc import Sequence

from leap.exits.tiles import Layout, TileShape, packed_tiles, tile_shape
from leap.model.encoder import EncoderConfig

TILE_TOKENS = (16, 32, 64, 128)
# The most programs a tile keeps busy, by its tokens.
MOST_MEMBERS = {16: 48, 32: 48, 64: 24, 128: 12}
FEWEST_MEMBERS = 4


def shapes(config: EncoderConfig) -> list[TileShape]:
    """The kernel's shapes for a model, the smallest tiles first."""
    made = (tile_shape(tokens, config.width, config.intermediate) for tokens in TILE_TOKENS)
    return [shape for shape in made if shape is not None]


def choose_layout(lengths: Sequence[int], config: EncoderConfig, processors: int) -> Layout:
    """The smallest tiles of which all run at once with enough programs each; else the largest.

    Args:
        lengths: of the rows.
        config: the model's.
        processors: of the device; a program keeps one busy.

    Raises:
        ValueError: a row is longer than the largest tile.
    """
    fitting = [shape for shape in shapes(config) if shape.tokens >= max(lengths)]
    if not fitting:
        raise ValueError(f"a row of {max(lengths)} tokens does not fit the largest tile")
    for shape in fitting:
        layout = layout_of(lengths, shape, processors)
        if layout.members >= min(12, processors):
            break
    return layout


def layout_of(
    lengths: Sequence[int], shape: TileShape, processors: int, members: int | None = None
) -> Layout:
    """A batch in tiles of one shape, with `members` programs each, or as many as are of use."""
    tiling = packed_tiles(lengths, shape.tokens)
    fair = max(processors // len(tiling), FEWEST_MEMBERS)
    members = min(members or min(fair, MOST_MEMBERS[shape.tokens]), processors)
    return Layout(shape, tiling, min(len(tiling), processors // members), members)
