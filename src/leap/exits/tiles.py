"""How a batch is cut up for the fused kernel: whole rows into tiles, tiles to groups of programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

# A tile's rows fit a vector of this many in the kernel.
MOST_ROWS = 16


@dataclass(frozen=True)
class TileShape:
    """What the kernel is compiled for, beside the model.

    tokens: of a tile, at most.
    split: parts of a product's inner dimension that run side by side; 1 for the large tiles' wgmma.
    chunk, wide_chunk: of the inner dimension D and F, a step of a product's loop.
    columns, wide_columns: of the outputs D and F, a program's share.
    stages: steps loaded ahead.
    warps: of a program.
    """

    tokens: int
    split: int
    chunk: int
    wide_chunk: int
    columns: int
    wide_columns: int
    stages: int = 3
    warps: int = 8


@dataclass(frozen=True)
class Tiling:
    """Packed rows in tiles: tile t holds tokens[t] to tokens[t + 1] and rows[t] to rows[t + 1]."""

    tokens: tuple[int, ...]
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Layout:
    """A batch's tiles and who computes them: `groups` groups of `members` programs."""

    shape: TileShape
    tiling: Tiling
    groups: int
    members: int


def tile_shape(tokens: int, width: int, intermediate: int) -> TileShape | None:
    """The kernel's shape for tiles of `tokens` tokens; None where the widths do not divide into it."""
    small = tokens <= 32
    chunk = _power_of_two_divisor(width, 128)
    wide_chunk = _power_of_two_divisor(intermediate, 512 if small else 128)
    columns = min(16 if small else 32, chunk)
    wide_columns = _power_of_two_divisor(intermediate, 32 if small else 128)
    if min(chunk, wide_chunk, wide_columns) < 16:
        return None
    split = min(8, chunk // 16, wide_chunk // 16) if small else 1
    return TileShape(tokens, split, chunk, wide_chunk, columns, wide_columns)


def packed_tiles(lengths: Sequence[int], tokens: int) -> Tiling:
    """Packs rows, in their order, into as few tiles as that order allows.

    Args:
        lengths: of the rows; each at most `tokens`.
        tokens: of a tile, at most.
    """
    starts = [0, *accumulate(lengths)]
    firsts = [0]
    for row in range(len(lengths)):
        if starts[row + 1] - starts[firsts[-1]] > tokens or row - firsts[-1] >= MOST_ROWS:
            firsts.append(row)
    rows = (*firsts, len(lengths))
    return Tiling(tuple(starts[row] for row in rows), rows)


def _power_of_two_divisor(number: int, most: int) -> int:
    return min(number & -number, most)
