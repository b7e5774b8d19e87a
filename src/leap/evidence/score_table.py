"""Scores of each text, pair or query, as a table next to the evidence: what comparing two variants needs.

Parquet, so that the JSON stays readable: a row a text in the order of the data, float64 figures rounded to
nine decimals. STS-B's 1,379 pairs take some 40 kB.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of, whole_file

if TYPE_CHECKING:
    import pyarrow as pa

Column = np.ndarray[Any, Any]


def write_scores(target: Path, columns: Mapping[str, Column | list[str]]) -> None:
    """Write a table, whole or not at all; all columns have one length, numbers or text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_arrays([_arrow(values) for values in columns.values()], names=list(columns))
    with whole_file(target) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _arrow(values: Column | list[str]) -> "pa.Array":
    """Convert a column from its memory: pa.array would import pandas, half a second of every stage."""
    import pyarrow as pa

    buffers: list[Any]
    if isinstance(values, np.ndarray):
        numbers = np.ascontiguousarray(values.round(9) if values.dtype == np.float64 else values)
        kind, buffers = pa.from_numpy_dtype(numbers.dtype), [numbers.data]
    else:
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        kind, buffers = pa.string(), [ends.data, memoryview(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(values), [None, *map(pa.py_buffer, buffers)])


def read_scores(path: Path) -> dict[str, Column]:
    """Read what `write_scores` wrote.

    Raises:
        UserError: the file is missing or damaged, or is not the one that the evidence next to it names.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"{path} is missing: `dvc repro` measures it")
    evidence = path.with_suffix(".json")
    if read_json(evidence, "dvc repro").get("scores") != sha256_of(path):
        raise UserError(
            f"{path} is not the table that {evidence} was written with: delete both, `dvc repro` measures again"
        )
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a readable table ({str(error).splitlines()[0]}): delete it, `dvc repro` measures again"
        ) from None
    return {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
