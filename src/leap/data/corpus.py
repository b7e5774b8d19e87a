"""The extracted training text."""

from pathlib import Path

import pyarrow.parquet as pq

from leap.errors import UserError


def read_sentences(path: Path) -> list[str]:
    """The sentences in their order.

    Raises:
        UserError: the file is missing.
    """
    if not path.exists():
        raise UserError(f"{path} is missing: `dvc repro extract` writes it")
    table = pq.ParquetFile(path).read(columns=["sentence"])  # read_table would import pandas
    sentences: list[str] = table.column("sentence").to_pylist()
    return sentences
