"""Scores a text, a pair or a query, as a table next to the evidence: what comparing two variants needs.

Parquet, so that the JSON stays readable: a row a text in the order of the data, float64 figures rounded to
nine decimals. STS-B's 1,379 pairs take some 40 kB.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of, whole_file

Column = np.ndarray[Any, Any]


def write_scores(target: Path, columns: Mapping[str, Column | list[str]]) -> None:
    """Write a table, whole or not at all; all columns have one length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rounded = {
        name: values.round(9) if isinstance(values, np.ndarray) and values.dtype == np.float64 else values
        for name, values in columns.items()
    }
    with whole_file(target) as beside:
        pq.write_table(pa.table(rounded), beside, compression="zstd")


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
    return {name: table.column(name).to_numpy().copy() for name in table.column_names}
