"""A table of words and numbers, and its three forms: aligned text, Markdown, and what the HTML templates draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "missing"


@dataclass(frozen=True)
class Grid:
    """A table.

    head: a name a column.
    rows: a text a cell.
    caption: what the table shows, where its place does not say so.
    words: so many leading columns, and the last one if `last_words`, hold words and are aligned left.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: int = 1
    last_words: bool = False

    def is_left(self, column: int) -> bool:
        """Return true for a column of words."""
        return column < self.words or (self.last_words and column == len(self.head) - 1)

    def text(self) -> str:
        """Align the columns for a terminal."""
        lines = [list(self.head), *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if self.is_left(i) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """Write a Markdown table."""
        lines = [list(self.head), ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shown(value: Any, digits: int | None = 3, missing: str = MISSING) -> str:
    """Format a value for a person; null reads as `missing`, never as zero. Digits null: as many as it needs."""
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if digits is None:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:.8g}"
    return f"{value:.{digits}f}"


def signed(value: float | None, digits: int | None = 4) -> str:
    """Format a difference with its sign; a dash where one of its two figures is missing."""
    return "-" if value is None else f"{value:+.{digits}f}"


def with_interval(value: float | None, interval: Sequence[float] | None, digits: int = 3) -> str:
    """Format a figure and its 95 % interval: "0.745 [0.695, 0.789]"."""
    ends = f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval and value is not None else ""
    return f"{shown(value, digits, '-')}{ends}"


def tone(text: str) -> str:
    """Name the class by which a page colours a cell that is a judgement."""
    tones = {
        "pass": "good",
        "refused": "bad",
        "FOUND": "bad",
        "FAILED": "bad",
        "warns": "warn",
        MISSING: "missing",
    }
    return next((kind for word, kind in tones.items() if text.startswith(word)), "")
