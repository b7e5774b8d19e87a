"""The two streams of text: what is trained on, and what is evaluated on and so must not be."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from leap.data.beir import read_collection
from leap.data.docstrings import read_docstrings
from leap.data.pairs import read_pairs
from leap.data.tables import source_rows
from leap.errors import UserError
from leap.progress import bar
from leap.settings.sources import PackageText, TextSource


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


def evaluation_texts(
    similarity: Path, retrieval: Path, pair_sets: Iterable[str], collections: Iterable[str]
) -> Iterator[str]:
    """Every sentence of the pair sets, every query and document of the collections, as `extract` wrote them.

    Args:
        similarity: the folder of the pair sets, data/similarity.
        retrieval: the folder of the collections, data/retrieval.
        pair_sets: names of the pair sets.
        collections: names of the collections.
    """
    for name in pair_sets:
        pairs = read_pairs(similarity / f"{name}.parquet")
        yield from pairs.sentence1
        yield from pairs.sentence2
    for name in collections:
        collection = read_collection(retrieval / name)
        yield from collection.queries.values()
        yield from collection.corpus.values()
