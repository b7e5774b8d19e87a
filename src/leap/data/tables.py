"""Local and hub files as streams of rows: parquet, csv, tsv, json, jsonl and txt, each also as .gz but parquet."""

import csv
import gzip
import json
import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as short_repr
from typing import IO, Any, NamedTuple

from leap.core.errors import UserError
from leap.core.settings.sources import HubFiles, LocalFiles
from leap.data.dataset_rows import BATCH_ROWS, arrow_values, hub_name, hub_values, is_arrow_folder

log = logging.getLogger(__name__)

# Characters of a field of a csv or tsv; Python's own limit of 131,072 is below what a web page holds.
LONGEST_FIELD = 2**27
DELIMITERS = (",", ";", "\t", "|")


class NoRowsError(UserError):
    """The files of a source have no rows at all."""


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

    def text(self, place: int, column: str) -> str:
        """Return a value that must be text, else raise UserError; in every form a null is an empty text."""
        value = self.values[place]
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(column, "text", value)
        return value

    def error(self, column: str, expected: str, value: Any) -> UserError:
        """Return the error that names the file, the row and the column of a wrong value."""
        return UserError(
            f"{self.file}, row {self.number}, {column}: expected {expected}, found {short_repr(value)}"
        )


def source_rows(source: HubFiles | LocalFiles, columns: Sequence[str], folder: Path) -> Iterator[Row]:
    """Read the rows of all files of a source, file by file in the order of their names, in bounded memory.

    A file without rows is passed over with a warning, as long as another one has some.

    Args:
        source: a data set of the hub, or local files.
        columns: the columns to read; each must exist.
        folder: data.folder, under which local paths lie.

    Raises:
        UserError: files or columns are missing, all are empty, one is damaged, or not UTF-8.
    """
    if isinstance(source, HubFiles):
        parts = [(hub_name(source), hub_values(source, columns))]
    else:
        parts = [(str(file), _values(file, columns, ())) for file in local_files(source.path, folder)]
    empty = []
    for name, values in parts:
        number = 0
        for number, read in enumerate(values, start=1):
            yield Row(name, number, read)
        if number == 0:
            empty.append(name)
    if len(empty) == len(parts):
        raise NoRowsError(f"{', '.join(empty)}: no rows; expected at least one with {', '.join(columns)}")
    if empty:
        log.warning("%d of %d files have no rows: %s", len(empty), len(parts), ", ".join(empty[:3]))


def local_files(path: str, folder: Path) -> list[Path]:
    """Find the files that a path or a pattern (`sentences/*.parquet`) under `folder` names, in order.

    A pattern does not match hidden files, such as the `._a.csv` that a Mac leaves on foreign disks.
    """
    pattern = inside(path)
    if is_arrow_folder(folder / pattern):
        return [folder / pattern]
    if (folder / pattern).is_dir():
        raise UserError(f"{folder / pattern} is a folder: name a file or a pattern, for example {path}/*.parquet")
    if not folder.is_dir():
        raise UserError(
            f"data.folder {folder} is not a folder: create it, or set data.folder to where {path} lies"
        )
    if (folder / pattern).is_file():
        return [folder / pattern]
    files = [file for file in sorted(folder.glob(pattern)) if file.is_file() and not is_hidden(file, folder)]
    if not files:
        raise UserError(f"no file matches {path!r} in data.folder {folder}: put it there, or change the path")
    return files


def is_hidden(file: Path, folder: Path) -> bool:
    """Tell whether a file, or a folder between it and `folder`, is hidden or a Mac's archive of metadata."""
    return any(part.startswith(".") or part == "__MACOSX" for part in file.relative_to(folder).parts)


def inside(path: str) -> str:
    """Normalise a path that must not leave data.folder, else UserError; links within it may point anywhere."""
    pattern = os.path.normpath(path)
    if Path(pattern).is_absolute():
        raise UserError(f"local path {path!r} is absolute: paths are relative, set data.folder to their folder")
    if Path(pattern).parts[:1] == ("..",):
        raise UserError(f"local path {path!r} leaves data.folder: set data.folder to a folder that holds it")
    return pattern


def file_rows(file: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Read the rows of one file; the columns asked for must exist, the optional ones give None if they do not.

    The delimiter of a csv is the one of , ; tab | that gives the columns asked for; quotes within its fields
    are doubled or escaped by a backslash, whichever the whole file can be read with. A tsv has no quotes (as
    BEIR and GLUE write it). A txt file has one row a line, in the column `text`.

    Raises:
        UserError: a column is missing or there twice, the file has no rows, is damaged, or is not UTF-8.
    """
    number = 0
    for number, values in enumerate(_values(file, columns, optional), start=1):
        yield Row(str(file), number, values)
    if number == 0:
        raise UserError(f"{file} has no rows: it must hold at least one with {', '.join(columns)}")


def _values(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    if is_arrow_folder(file):
        yield from arrow_values(file, columns)
        return
    ending = file_ending(file)
    if ending not in _READERS or (ending == ".parquet" and file.suffix.lower() == ".gz"):
        raise UserError(f"{file}: cannot read {ending or 'a file without an ending'}, only {', '.join(_READERS)}")
    number = 0
    try:
        for number, values in enumerate(_READERS[ending](file, columns, optional), start=1):  # noqa: B007
            yield values
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 (byte {error.object[error.start]:#04x} after row {number}): "
            "save it as UTF-8 and run again"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is damaged ({error}): get it again") from None


def file_ending(file: Path) -> str:
    """Return what says the form of a file: its ending in lower case, that before `.gz` if it is packed."""
    name = file.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def open_text(file: Path) -> IO[str]:
    """Open a file of text, packed or not, as UTF-8."""
    # utf-8-sig takes a byte order mark away; newline="" leaves line ends within quotes to the csv reader.
    if file.suffix.lower() == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _positions(
    file: Path, names: Sequence[str], columns: Sequence[str], optional: Sequence[str]
) -> list[int | None]:
    missing = [column for column in columns if column not in names]
    if missing:
        raise UserError(
            f"{file} has no column {', '.join(missing)}: its columns are {', '.join(names)}; name "
            "those to read by --column, in the settings by `columns` (upper and lower case differ)"
        )
    count = Counter(names)
    twice = [column for column in (*columns, *optional) if count[column] > 1]
    if twice:
        raise UserError(f"{file} has the column {twice[0]} {count[twice[0]]} times: rename all but one")
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
    except UnicodeDecodeError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{file} is not a readable parquet file ({(str(error).splitlines() or [''])[0]}): write or fetch "
            "it again"
        ) from None


def _csv(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with open_text(file) as lines:
        header = lines.readline()
    style: dict[str, Any] = {"delimiter": delimiter_of(header, columns)}
    if _holds_escaped_quotes(file) and not _is_well_formed(file, style):
        style |= {"escapechar": "\\", "doublequote": False}
    yield from _read_delimited(file, columns, optional, style)


def delimiter_of(header: str, columns: Sequence[str] = ()) -> str:
    """Return the delimiter that gives the columns asked for, and of those the one that gives the most columns."""

    def rank(delimiter: str) -> tuple[bool, int]:
        names = next(csv.reader([header], delimiter=delimiter), [])
        return set(columns) <= set(names), len(names)

    return max(DELIMITERS, key=rank)


def _tsv(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return _read_delimited(file, columns, optional, {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def _holds_escaped_quotes(file: Path) -> bool:
    with open_text(file) as lines:
        return any('\\"' in line for line in lines)


def _is_well_formed(file: Path, style: dict[str, Any]) -> bool:
    """Return whether all rows of a csv have as many fields as its header, with quotes that are doubled."""
    csv.field_size_limit(LONGEST_FIELD)
    with open_text(file) as lines:
        rows = csv.reader(lines, strict=True, **style)
        try:
            width = len(next(rows))
            return all(len(row) == width for row in rows if row)
        except csv.Error:
            return False


def _read_delimited(
    file: Path, columns: Sequence[str], optional: Sequence[str], style: dict[str, Any]
) -> Iterator[tuple[Any, ...]]:
    csv.field_size_limit(LONGEST_FIELD)
    with open_text(file) as lines:
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
                    raise UserError(
                        f"{file}, row {number}: {len(row)} fields, the header has {len(header)}: put quotes "
                        "round a field that holds a delimiter"
                    )
                yield tuple(None if i is None else row[i] for i in positions)
        except csv.Error as error:
            raise UserError(f"{file}, line {rows.line_num}: not well-formed ({error}): correct the line") from None


def _jsonl(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with open_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                record = _json(line, f"{file}, line {number}")
                yield _fields(record, f"{file}, line {number}", columns, optional)


def _json_file(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """A JSON array of objects; a file of that ending that holds JSON lines is read as such."""
    with open_text(file) as lines:
        is_array = next((line for line in lines if line.strip()), "").lstrip().startswith("[")
    if not is_array:
        yield from _jsonl(file, columns, optional)
        return
    with open_text(file) as lines:
        records = _json(lines.read(), str(file))
    for number, record in enumerate(records, start=1):
        yield _fields(record, f"{file}, row {number}", columns, optional)


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise UserError(f"{place}: not JSON ({error}): correct it there") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is there twice")
    return content


def _fields(record: Any, place: str, columns: Sequence[str], optional: Sequence[str]) -> tuple[Any, ...]:
    if not isinstance(record, dict):
        raise UserError(f"{place}: expected a JSON object, found {short_repr(record)}")
    for column in columns:
        if column not in record:
            raise UserError(
                f"{place} has no key {column}, its keys are {', '.join(record)}: name those to read by "
                "--column, in the settings by `columns`"
            )
    return tuple(record.get(column) for column in (*columns, *optional))


def _lines(file: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    positions = _positions(file, ["text"], columns, optional)
    with open_text(file) as lines:
        for line in lines:
            if line.strip():
                yield tuple(None if i is None else line.rstrip("\r\n") for i in positions)


Reader = Callable[[Path, Sequence[str], Sequence[str]], Iterator[tuple[Any, ...]]]
_READERS: dict[str, Reader] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json_file,
    ".txt": _lines,
}
