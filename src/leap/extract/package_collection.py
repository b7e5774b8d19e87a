"""A retrieval collection from docstrings: a summary line asks for the rest of the same docstring."""

import random
import re

from leap.core.errors import UserError
from leap.core.settings.sources import PackageCollection
from leap.data.cleaning import fingerprint
from leap.extract.docstrings import Docstring, read_docstrings

Texts = dict[str, tuple[str, str]]

MIN_BODY_WORDS = 20
MAX_BODY_WORDS = 150
# A body's sentence that shares this much of its words with the summary only says it again.
MAX_OVERLAP = 0.6

_WORDS = re.compile(r"[a-z]+")


def docstring_collection(
    name: str, source: PackageCollection, seed: int
) -> tuple[Texts, Texts, dict[str, dict[str, int]]]:
    """Make documents and queries (id to title and text) and the judgements.

    Summaries and bodies are unique over the collection, so each query has exactly one relevant document. The
    ids are numbers in a seeded order and tell nothing of what belongs together; there are no titles.

    Raises:
        UserError: the packages have too few docstrings of that kind.
    """
    candidates: list[tuple[str, str]] = []
    seen: set[int] = set()
    for docstring in read_docstrings(source.packages):
        body = _body(docstring)
        prints = {fingerprint(docstring.summary), fingerprint(body)}
        if docstring.summary and body and not prints & seen:
            seen |= prints
            candidates.append((docstring.summary, body))
    if len(candidates) < source.documents:
        raise UserError(
            f"retrieval.{name}: {source.documents} documents are wanted, the packages "
            f"{', '.join(source.packages)} have {len(candidates)} fit docstrings: name more packages or "
            "lower documents"
        )
    # By hash, not by place: the choice must not hang on the order of packages or objects.
    candidates.sort(key=lambda pair: fingerprint(" ".join(pair), seed))
    chosen = candidates[: source.documents]
    numbers = random.Random(seed).sample(range(len(chosen)), len(chosen))
    documents: Texts = {
        f"d{number}": ("", body) for number, (_, body) in sorted(zip(numbers, chosen, strict=True))
    }
    queries: Texts = {f"q{i}": ("", summary) for i, (summary, _) in enumerate(chosen[: source.queries])}
    qrels = {f"q{i}": {f"d{numbers[i]}": 1} for i in range(source.queries)}
    return documents, queries, qrels


def _body(docstring: Docstring) -> str:
    """The rest of a docstring without what repeats its summary, "" if too short."""
    summary = set(_WORDS.findall(docstring.summary.lower()))
    sentences = [sentence for sentence in docstring.sentences[1:] if _overlap(sentence, summary) < MAX_OVERLAP]
    words = " ".join(sentences).split()
    if len(words) < MIN_BODY_WORDS:
        return ""
    while len(" ".join(sentences).split()) > MAX_BODY_WORDS and len(sentences) > 1:
        sentences.pop()
    return " ".join(sentences)


def _overlap(sentence: str, summary: set[str]) -> float:
    words = set(_WORDS.findall(sentence.lower()))
    return len(words & summary) / max(1, min(len(words), len(summary)))
