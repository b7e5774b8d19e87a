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
    sentences: list[str] = pq.read_table(path, columns=["sentence"]).column("sentence").to_pylist()
    return sentences
