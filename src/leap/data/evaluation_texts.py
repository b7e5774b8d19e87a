"""The stream of text that is evaluated on, and so must not be trained on."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from leap.data.beir import read_collection
from leap.data.pairs import read_pairs


def evaluation_texts(
    similarity: Path, retrieval: Path, pair_sets: Iterable[str], collections: Iterable[str]
) -> Iterator[str]:
    """Yield every sentence of the pair sets, query and document of the collections, as `extract` wrote them."""
    for name in pair_sets:
        pairs = read_pairs(similarity / f"{name}.parquet")
        yield from pairs.sentence1
        yield from pairs.sentence2
    for name in collections:
        collection = read_collection(retrieval / name)
        yield from collection.queries.values()
        yield from collection.corpus.values()
