"""The stream of training text from all sources."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from leap.core.errors import UserError
from leap.core.progress import bar
from leap.core.settings.sources import PackageText, TextSource
from leap.data.tables import source_rows
from leap.extract.docstrings import read_docstrings


def training_texts(sources: Mapping[str, TextSource], folder: Path) -> Iterator[tuple[str, str]]:
    """(source name, raw text) of every text of the training sources, in bounded memory.

    Args:
        sources: by name; hub, local or package.
        folder: data.folder, under which local paths lie.

    Raises:
        UserError: a source cannot be read, or a value is not text; an empty cell counts as an empty text.
    """
    for name, source in sources.items():
        if isinstance(source, PackageText):
            for docstring in read_docstrings(source.packages):
                yield from ((name, sentence) for sentence in docstring.sentences)
            continue
        for row in bar(source_rows(source, source.columns, folder), desc=name, unit=" rows", unit_scale=True):
            for column, value in zip(source.columns, row.values, strict=True):
                if not isinstance(value, str | None):
                    raise UserError(f"{row.file}, row {row.number}, {column}: expected text, found {value!r}")
                yield name, value or ""
