"""The parquet files that `extract` writes, read back with the checksum of every page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leap.errors import UserError


def read_columns(path: Path, types: Mapping[str, str]) -> dict[str, Any]:
    """Some columns of a file that `extract` wrote.

    Args:
        path: the parquet file.
        types: Arrow's name of the type by column.

    Returns:
        By column a pyarrow ChunkedArray.

    Raises:
        UserError: the file is missing, damaged or another.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"{path} is missing: `dvc repro extract` writes it")
    try:
        # read_table would import pandas
        table = pq.ParquetFile(path, page_checksum_verification=True).read(columns=list(types))
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} is not a readable parquet file ({reason}): delete it, and `dvc repro extract` writes it "
            "anew"
        ) from None
    # pandas writes large_string, which holds the same.
    found = {field.name: str(field.type).removeprefix("large_") for field in table.schema}
    if found != dict(types):
        raise UserError(
            f"{path} has the columns {found}, expected {dict(types)}: delete it, and `dvc repro extract` "
            "writes it anew"
        )
    return {name: table.column(name) for name in types}
