"""Scored sentence pairs: from hub or local files to one parquet file, and back for evaluation."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.settings.sources import PairSource
from leap.data.cleaning import clean
from leap.data.extracted import read_columns
from leap.data.tables import Row, source_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Pairs(NamedTuple):
    """A set of scored pairs, in the order of its file."""

    sentence1: list[str]
    sentence2: list[str]
    scores: "NDArray[np.float64]"

    def sentences(self) -> list[str]:
        return list(dict.fromkeys([*self.sentence1, *self.sentence2]))


def write_pairs(name: str, source: PairSource, folder: Path, target: Path) -> int:
    """Write a pair set as parquet (`sentence1`, `sentence2`, `score`); returns how many pairs it has.

    The scale is 0 to 5 for `similarity` (STS-B) and 0 or 1 for `duplicates` (QQP); `max_pairs` takes the
    first.

    Raises:
        UserError: files or columns are missing, or a row is not a scored pair; names the file and the row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = list(islice(scored_pairs(source, folder), source.max_pairs))
    scores = {score for _, _, score in pairs}
    if len(scores) < 2:
        raise UserError(
            f"similarity.{name}: all {len(pairs)} pairs have the score {scores.pop()}, nothing can be "
            "ranked: look at its file, its column for `score` and max_pairs"
        )
    schema = pa.schema([("sentence1", pa.string()), ("sentence2", pa.string()), ("score", pa.float64())])
    with whole_file(target) as temporary:
        table = pa.table([list(column) for column in zip(*pairs, strict=True)], schema=schema)
        pq.write_table(table, temporary, write_page_checksum=True)
    return len(pairs)


def scored_pairs(source: PairSource, folder: Path) -> Iterator[tuple[str, str, float]]:
    """Read the pairs of a source with their scores; errors as of `write_pairs`."""
    columns = (source.columns.sentence1, source.columns.sentence2, source.columns.score)
    return (_pair(row, columns, source.task) for row in source_rows(source, columns, folder))


def read_pairs(path: Path) -> Pairs:
    """Read what `write_pairs` wrote; scores are float64 `[n]`. UserError if the file is missing or damaged."""
    columns = read_columns(path, {"sentence1": "string", "sentence2": "string", "score": "double"})
    one, two, scores = (columns[name].to_pylist() for name in ("sentence1", "sentence2", "score"))
    return Pairs(one, two, np.array(scores, dtype=np.float64))  # pyarrow's to_numpy would import pandas


def _pair(row: Row, columns: tuple[str, str, str], task: str) -> tuple[str, str, float]:
    return _sentence(row, 0, columns[0]), _sentence(row, 1, columns[1]), _score(row, columns[2], task)


def _sentence(row: Row, place: int, column: str) -> str:
    sentence = clean(row.text(place, column))
    if not sentence:
        raise row.error(column, "a sentence", row.values[place])
    return sentence


def _score(row: Row, column: str, task: str) -> float:
    value = row.values[2]
    try:
        score = math.nan if isinstance(value, bool) and task == "similarity" else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if task == "duplicates":
        valid, expected = score in (0.0, 1.0), "0 or 1 (task duplicates)"
    else:
        valid, expected = 0.0 <= score <= 5.0, "a number from 0 to 5 (task similarity)"
    if not valid:
        raise row.error(column, expected, value)
    return score
