"""The stream of training text from all sources."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leap.core.progress import bar
from leap.core.settings.sources import LocalText, PackageText, TextSource
from leap.data.tables import NoRowsError, local_files, source_rows
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


@dataclass(frozen=True)
class TextPart:
    """The texts of one source, or of one file of it, as (source name, raw text); none if the file has no rows."""

    name: str
    source: TextSource
    folder: Path

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with suppress(NoRowsError):
            yield from training_texts({self.name: self.source}, self.folder)


def text_parts(sources: Mapping[str, TextSource], folder: Path) -> list[TextPart]:
    """Divide the training sources into parts that can be read apart: local sources by file, others whole.

    Raises:
        UserError: the first row of a local source cannot be read, or it has none.
    """
    parts = []
    for name, source in sources.items():
        if isinstance(source, LocalText):
            next(training_texts({name: source}, folder))
            files = (file.relative_to(folder).as_posix() for file in local_files(source.path, folder))
            parts += [TextPart(name, source.model_copy(update={"path": path}), folder) for path in files]
        else:
            parts.append(TextPart(name, source, folder))
    return parts
