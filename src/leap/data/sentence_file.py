"""The extracted training text."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

from leap.data.extracted import ExtractedFile, read_columns

_COLUMN = {"sentence": "string"}


def read_sentences(path: Path) -> list[str]:
    """Read the sentences in their order; UserError if the file is missing or damaged."""
    sentences: list[str] = read_columns(path, _COLUMN)["sentence"].to_pylist()
    return sentences


class SentenceFile(Sequence[str]):
    """The same sentences where they lie: one row group is in memory, however many the file has.

    Made for reading in order; a sentence far from the last one costs the reading of a row group.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; UserError if it is missing or another. Reading a damaged sentence raises it."""
        self._path = path
        self._file = ExtractedFile(path, _COLUMN)
        self._ends = list(accumulate(self._file.rows))
        self._group: tuple[int, list[str]] = (-1, [])  # its number and its sentences

    def __reduce__(self) -> tuple[type["SentenceFile"], tuple[Path]]:
        return SentenceFile, (self._path,)  # sent to another process, it is opened there

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        group = bisect_right(self._ends, row)
        return self._read(group)[row - self._ends[group] + self._file.rows[group]]

    def __iter__(self) -> Iterator[str]:
        for group in range(len(self._ends)):
            yield from self._read(group)

    def _read(self, group: int) -> list[str]:
        if self._group[0] != group:
            self._group = (group, self._file.read(group)["sentence"].to_pylist())
        return self._group[1]
