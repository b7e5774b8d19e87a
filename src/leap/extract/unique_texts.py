"""Clean, unique texts without those of the evaluation, in a seeded order.

Texts go to buckets on disk by a keyed hash of their normalised form, so that equal texts meet in one bucket
and the buckets in turn are the seeded order: memory holds one bucket, however many texts come in.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from leap.data.cleaning import EvaluationTexts, clean, fingerprint, split_sentences

BUCKETS = 64
COUNTS = (
    "split",
    "read",
    "too_short",
    "too_long",
    "evaluation",
    "duplicate",
    "held_out",
    "not_sampled",
    "kept",
    "passages",
)
Counts = dict[str, dict[str, int]]


def no_counts() -> Counts:
    """Make counts by source that begin with 0 when a source is first met."""
    return defaultdict(lambda: dict.fromkeys(COUNTS, 0))


@dataclass(frozen=True)
class Cleaning:
    """Which texts are trained on, and the seed of their order.

    Attributes:
        seed: of the hash that texts are sorted by.
        min_characters: a sentence must be longer (paper, Appendix K: > 20).
        max_characters: and not longer than this.
        split: splits a text that is longer than `max_characters` into its sentences; else it is left out.
        evaluation: texts that must not be trained on.
    """

    seed: int
    min_characters: int
    max_characters: int
    split: bool
    evaluation: EvaluationTexts


def clean_texts(
    texts: Iterable[tuple[str, str]], cleaning: Cleaning, counts: Counts
) -> Iterator[tuple[str, str, str]]:
    """Yield (hash, source, sentence) of the texts that may be trained on, and count the others.

    `texts` are (source, text) pairs, of which each sentence is read where they are split; the hash has 16
    hexadecimal digits, whose order is the seeded one.
    """
    for source, raw in texts:
        count = counts[source]
        whole = clean(raw)
        parts = split_sentences(whole) if cleaning.split and len(whole) > cleaning.max_characters else [whole]
        count["split"] += len(parts) > 1
        for text in parts:
            count["read"] += 1
            if len(text) <= cleaning.min_characters:
                count["too_short"] += 1
            elif len(text) > cleaning.max_characters:
                count["too_long"] += 1
            elif cleaning.evaluation.occur_in(text):
                count["evaluation"] += 1
            else:
                yield f"{fingerprint(text, cleaning.seed):016x}", source, text


def bucket_of(order: str, buckets: int) -> int:
    """Return the bucket of a hash: the buckets in turn are in the order of the hashes, however many they are."""
    return int(order, 16) * buckets >> 64


def drop_duplicates(rows: Iterable[tuple[str, str, str]], counts: Counts) -> Iterator[tuple[str, str]]:
    """Yield (sentence, source) of sorted (hash, source, sentence); of equal texts the first by source."""
    previous = ""
    for order, source, text in rows:
        if order == previous:
            counts[source]["duplicate"] += 1
            continue
        previous = order
        yield text, source


def unique_in_buckets(
    parts: Sequence[Iterable[tuple[str, str]]], cleaning: Cleaning, scratch: Path, counts: Counts
) -> Iterator[tuple[str, str]]:
    """Yield (sentence, source) of the unique texts in the order of their hashes; the parts' order does not matter.

    Each part is (source, text) pairs; the buckets lie in `scratch`.
    """
    buckets = [scratch / f"bucket-{i:02d}" for i in range(BUCKETS)]
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in buckets]
        for order, source, text in clean_texts(chain.from_iterable(parts), cleaning, counts):
            files[bucket_of(order, BUCKETS)].write(f"{order}\t{source}\t{text}\n")
    for path in buckets:
        yield from drop_duplicates(_sorted_rows(path), counts)


def _sorted_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = sorted(file)
    for line in lines:
        order, source, text = line.rstrip("\n").split("\t")
        yield order, source, text
