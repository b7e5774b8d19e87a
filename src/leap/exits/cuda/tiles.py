"""A batch cut up for the fused kernel: whole rows into tiles, tiles to groups of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from leap.models.packed_encoder import EncoderConfig

# A tile's rows fit the kernel's notes.
MOST_ROWS = 16
WARPS = 8
# Of a Hopper block, less the kernel's notes.
SHARED_BYTES = 227 * 1024 - 4096
# Sums that a thread holds in registers.
MOST_SUMS = 64


@dataclass(frozen=True)
class TileShape:
    """The kernel's compile-time sizes, apart from the model's.

    rows16: of 16 tokens each, a tile.
    project, widen, narrow: columns of a block's share of a step.
    warps: that share those columns, of attend, project, widen and narrow; the rest split the inner dimension.
    """

    rows16: int
    project: int
    widen: int
    narrow: int
    warps: tuple[int, int, int, int]

    @property
    def tokens(self) -> int:
        return 16 * self.rows16

    def shared_bytes(self, config: EncoderConfig) -> int:
        """Dynamic shared memory of a block: the normed tile and partial sums, as the kernel lays them out."""
        head = config.width // config.heads
        attend, project, widen, narrow = (
            WARPS // warps * self.tokens * (columns + 8) * 4
            for columns, warps in zip((3 * head, self.project, self.widen, self.narrow), self.warps, strict=True)
        )
        mixed = 4 * self.tokens * (head + 8) + 2 * head * (self.tokens + 8)
        tile = 2 * self.tokens * (config.width + 32)
        return max(tile + max(attend, mixed, widen), project, narrow)


@dataclass(frozen=True)
class Tiling:
    """Packed rows in tiles: tile t holds rows[t] to rows[t + 1]; row r starts at token starts[r]."""

    starts: tuple[int, ...]
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows) - 1


@dataclass(frozen=True)
class Layout:
    """A batch's tiles and who computes them: `groups` groups of `members` blocks."""

    shape: TileShape
    tiling: Tiling
    groups: int
    members: int


def tile_shape(rows16: int, config: EncoderConfig, columns: tuple[int, int, int]) -> TileShape | None:
    """Return the kernel's shape for tiles of `rows16` (1, 2 or 4) times 16 tokens; None if nothing divides.

    `columns` are a block's share of the steps project, widen and narrow.
    """
    head, rest = divmod(config.width, config.heads)
    project, widen, narrow = columns
    if rest or head % 32 or config.width % 128 or config.intermediate % 32:
        return None
    if config.width % project or config.width % narrow or config.intermediate % widen:
        return None
    warps = tuple(_warps(rows16, share) for share in (3 * head, project, widen, narrow))
    shape = TileShape(rows16, project, widen, narrow, (warps[0], warps[1], warps[2], warps[3]))
    return shape if shape.shared_bytes(config) <= SHARED_BYTES else None


def packed_tiles(lengths: Sequence[int], tokens: int) -> Tiling:
    """Pack rows, in their order, into as few tiles of at most `tokens` as that order allows."""
    starts = (0, *accumulate(lengths))
    firsts = [0]
    for row in range(len(lengths)):
        if starts[row + 1] - starts[firsts[-1]] > tokens or row - firsts[-1] >= MOST_ROWS:
            firsts.append(row)
    return Tiling(starts, (*firsts, len(lengths)))


def _warps(rows16: int, columns: int) -> int:
    """The fewest warps along the columns with which a thread's sums fit its registers."""
    fitting = [warps for warps in (1, 2, 4, 8) if columns % (8 * warps) == 0]
    return next((w for w in fitting if rows16 * columns // 8 // w * 4 <= MOST_SUMS), fitting[-1])
