"""The parquet files that `extract` writes, read back with the checksum of every page."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leap.core.errors import UserError


class ExtractedFile:
    """Some columns of a file that `extract` wrote, to be read whole or a row group at a time.

    rows: how many each row group has.
    """

    def __init__(self, path: Path, types: Mapping[str, str]) -> None:
        """Open a parquet file; `types` are Arrow's names by column. UserError: missing, damaged or another."""
        import pyarrow.parquet as pq

        if not path.is_file():
            raise UserError(f"{path} is missing: `dvc repro extract` writes it")
        self._path, self._columns = path, list(types)
        with self._refuse_damage():
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = self._file.metadata
            self.rows: list[int] = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            schema = self._file.schema_arrow
        # pandas writes large_string, which holds the same.
        types_here = {
            name: str(schema.field(name).type).removeprefix("large_") for name in types if name in schema.names
        }
        if types_here != dict(types):
            raise UserError(
                f"{path} has the columns {types_here}, expected {dict(types)}: delete it, and `dvc repro extract` "
                "writes it again"
            )

    def read(self, group: int | None = None) -> dict[str, Any]:
        """Read, by column, a pyarrow ChunkedArray of one row group or of all; UserError if the file is damaged."""
        with self._refuse_damage():
            # read_table would import pandas
            if group is None:
                table = self._file.read(columns=self._columns)
            else:
                table = self._file.read_row_group(group, columns=self._columns)
            table.validate(full=True)
        return {name: table.column(name) for name in self._columns}

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"{self._path} is not a readable parquet file ({reason}): delete it, and `dvc repro extract` "
                "writes it again"
            ) from None


def read_columns(path: Path, types: Mapping[str, str]) -> dict[str, Any]:
    """Read some columns of a file that `extract` wrote; arguments, result and errors as of `ExtractedFile`."""
    return ExtractedFile(path, types).read()
