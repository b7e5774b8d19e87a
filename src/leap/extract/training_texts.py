"""The stream of training text from all sources."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from leap.core.progress import bar
from leap.core.settings.sources import PackageText, TextSource
from leap.data.tables import source_rows
from leap.extract.docstrings import read_docstrings


def training_texts(sources: Mapping[str, TextSource], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (source name, raw text) of every text of the training sources, in bounded memory.

    Raises:
        UserError: a source cannot be read, or a value is not text; a null counts as an empty text.
    """
    for name, source in sources.items():
        if isinstance(source, PackageText):
            for docstring in read_docstrings(source.packages):
                yield from ((name, sentence) for sentence in docstring.sentences)
            continue
        for row in bar(source_rows(source, source.columns, folder), desc=name, unit=" rows", unit_scale=True):
            for place, column in enumerate(source.columns):
                yield name, row.text(place, column)
