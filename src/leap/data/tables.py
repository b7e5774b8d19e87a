"""Local and hub files as streams of rows: parquet, csv, tsv, jsonl and txt, each also as .gz but parquet."""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from leap.core.errors import UserError
from leap.core.hub import fetch, matching
from leap.core.settings.sources import HubFiles, LocalFiles

BATCH_ROWS = 4096
# Characters of a field of a csv or tsv; Python's own limit of 131,072 is below what a web page holds.
LONGEST_FIELD = 2**27


class Row(NamedTuple):
    """One row of a file.

    Attributes:
        file: the file's name as a person knows it.
        number: counted from 1 without the header.
        values: the columns asked for, in that order; None where an optional column is missing.
    """

    file: str
    number: int
    values: tuple[Any, ...]


def source_rows(source: HubFiles | LocalFiles, columns: Sequence[str], folder: Path) -> Iterator[Row]:
    """The rows of all files of a source, file by file in the order of their names, in bounded memory.

    Args:
        source: hub or local files.
        columns: the columns to read; each must exist.
        folder: data.folder, under which local paths lie.

    Raises:
        UserError: files or columns are missing, a file is empty, damaged, or not UTF-8.
    """
    for file in source_files(source, folder):
        yield from file_rows(file, columns)


def source_files(source: HubFiles | LocalFiles, folder: Path) -> list[Path]:
    """The files of a source, downloaded if they are on a hub.

    Raises:
        UserError: there is none, or a local path leaves `folder`.
    """
    if isinstance(source, LocalFiles):
        return local_files(source.path, folder)
    root = fetch(source.repo, source.revision, source.files, "dataset", required=source.files)
    files: list[Path] = []
    for pattern in source.files:
        found = matching(root, pattern)
        if not found:
            raise UserError(
                f"dataset {source.repo} at commit {source.revision} has no file that matches {pattern!r}"
            )
        files += [file for file in found if file not in files]
    return files


def local_files(path: str, folder: Path) -> list[Path]:
    """The files that a path or a pattern (`sentences/*.parquet`) under `folder` names, in order.

    Raises:
        UserError: there is none, or the path is absolute or leaves `folder`.
    """
    pattern = inside(path)
    if (folder / pattern).is_dir():
        raise UserError(f"{folder / pattern} is a folder: name a file or a pattern, for example {path}/*.parquet")
    if not folder.is_dir():
        raise UserError(
            f"data.folder {folder} is not a folder: create it, or set data.folder to where {path} lies"
        )
    found = [folder / pattern] if (folder / pattern).is_file() else sorted(folder.glob(pattern))
    files = [file for file in found if file.is_file()]
    if not files:
        raise UserError(f"no file matches {path!r} in data.folder {folder}: put it there, or change the path")
    return files


def inside(path: str) -> str:
    """The normalised form of a path that must not leave data.folder; links within it may point anywhere.

    Raises:
        UserError: it is absolute or climbs out.
    """
    pattern = os.path.normpath(path)
    if Path(pattern).is_absolute():
        raise UserError(f"local path {path!r} is absolute: paths are relative, set data.folder to their folder")
    if Path(pattern).parts[:1] == ("..",):
        raise UserError(f"local path {path!r} leaves data.folder: set data.folder to a folder that holds it")
    return pattern


def file_rows(file: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of one file; the columns asked for must exist, the optional ones give None if they do not.

    A tsv has no quotes (as BEIR and GLUE write it). A txt file has one row a line, in the column `text`.

    Raises:
        UserError: a column is missing, the file has no rows, is damaged, or is not UTF-8.
    """
    name = file.name.removesuffix(".gz")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix not in _READERS or (suffix == ".parquet" and name != file.name):
        raise UserError(f"{file}: cannot read {suffix or 'a file without an ending'}, only {', '.join(_READERS)}")
    number = 0
    try:
        for number, values in enumerate(_READERS[suffix](file, columns, optional), start=1):
            yield Row(str(file), number, values)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 (byte {error.object[error.start]:#04x} after row {number}): "
            "save it as UTF-8 and run again"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is damaged ({error}): get it again") from None
    if number == 0:
        raise UserError(f"{file} has no rows: it must hold at least one with {', '.join(columns)}")


def _text(file: Path) -> IO[str]:
    # utf-8-sig takes a byte order mark away; newline="" leaves line ends within quotes to the csv reader.
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _positions(
    file: Path, names: Sequence[str], columns: Sequence[str], optional: Sequence[str]
) -> list[int | None]:
    missing = [column for column in columns if column not in names]
    if missing:
        raise UserError(
            f"{file} has no column {', '.join(missing)}: its columns are {', '.join(names)}; upper and lower "
            "case differ"
        )
    return [names.index(column) if column in names else None for column in (*columns, *optional)]


def _parquet(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        wanted = [names[i] for i in _positions(file, names, columns, optional) if i is not None]
        for batch in table.iter_batches(BATCH_ROWS, columns=wanted):
            read = {name: batch.column(name).to_pylist() for name in wanted}
            blank = [None] * len(batch)
            yield from zip(*(read.get(name, blank) for name in (*columns, *optional)), strict=True)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a readable parquet file ({str(error).splitlines()[0]})") from None


def _delimited(**style: Any) -> "Reader":
    def read(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        csv.field_size_limit(LONGEST_FIELD)
        with _text(file) as lines:
            rows = csv.reader(lines, strict=True, **style)
            try:
                header = next(rows, None)
                if header is None:
                    return
                positions = _positions(file, header, columns, optional)
                number = 0
                for row in rows:
                    if not row:  # an empty line
                        continue
                    number += 1
                    if len(row) != len(header):
                        raise UserError(f"{file}, row {number}: {len(row)} fields, the header has {len(header)}")
                    yield tuple(None if i is None else row[i] for i in positions)
            except csv.Error as error:
                raise UserError(f"{file}, line {rows.line_num}: not well-formed ({error})") from None

    return read


def _jsonl(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with _text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
                raise UserError(f"{file}, line {number}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise UserError(f"{file}, line {number}: expected a JSON object, found {line.strip()[:40]!r}")
            for column in columns:
                if column not in record:
                    raise UserError(f"{file}, line {number} has no key {column}: its keys are {', '.join(record)}")
            yield tuple(record.get(column) for column in (*columns, *optional))


def _lines(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    positions = _positions(file, ["text"], columns, optional)
    with _text(file) as lines:
        for line in lines:
            if line.strip():
                yield tuple(None if i is None else line.rstrip("\r\n") for i in positions)


Reader = Callable[[Path, Sequence[str], Sequence[str]], Iterator[tuple[Any, ...]]]
_READERS: dict[str, Reader] = {
    ".parquet": _parquet,
    ".csv": _delimited(),
    ".tsv": _delimited(delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _jsonl,
    ".txt": _lines,
}
