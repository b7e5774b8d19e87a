"""Training sentences: clean, unique, free of evaluation texts, a seeded sample in a seeded order.

Texts go to buckets on disk by a keyed hash of their normalised form, so that equal texts meet in one bucket
and the buckets in turn are the seeded order: memory holds one bucket, however many texts come in.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from leap.data.prose import sentences
from leap.errors import UserError
from leap.files import whole_file

BUCKETS = 64
ROW_GROUP = 20_000
COUNTS = ("read", "too_short", "too_long", "evaluation", "duplicate", "not_sampled", "kept")

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INVISIBLE = re.compile("[\ufeff\u200b\u2060\ud800-\udfff]")  # marks, and halves of surrogate pairs
_ENDS = re.compile(r"^[\W_]+|[\W_]+$")


def clean(text: str) -> str:
    """Text in Unicode NFC with its whitespace folded, without control and invisible characters."""
    text = _INVISIBLE.sub("", _CONTROLS.sub(" ", text))
    return " ".join(unicodedata.normalize("NFC", text).split())


def fingerprint(text: str, seed: int = 0) -> int:
    """64 bits for a clean text: equal for texts that differ in case and in punctuation at the ends only."""
    folded = _ENDS.sub("", text.casefold()) or text
    return int.from_bytes(blake2b(folded.encode(), digest_size=8, key=str(seed).encode()).digest())


def evaluation_prints(texts: Iterable[str]) -> set[int]:
    """The fingerprints of evaluation texts: of each whole text and of each of its sentences."""
    return {
        fingerprint(part) for text in texts for whole in (clean(text),) for part in (whole, *sentences(whole))
    }


def write_sample(
    texts: Iterable[tuple[str, str]],
    target: Path,
    *,
    seed: int,
    min_characters: int,
    max_characters: int,
    max_sentences: int | None,
    evaluation: set[int],
) -> dict[str, dict[str, int]]:
    """Writes the unique sentences longer than `min_characters` as parquet; the input's order does not matter.

    Args:
        texts: (source, text) pairs.
        target: the parquet file with the columns `sentence` and `source`, written whole.
        seed: of the sample and of the order.
        min_characters: a sentence must be longer (paper, Appendix K: > 20).
        max_characters: and not longer than this.
        max_sentences: size of the sample; None takes all.
        evaluation: fingerprints that must not be trained on.

    Returns:
        Counts by source: read = too_short + too_long + evaluation + duplicate + not_sampled + kept.

    Raises:
        UserError: nothing is left.
    """
    counts: dict[str, dict[str, int]] = {}
    with whole_file(target) as beside:
        # The file's place is a folder of its own, which goes at the end.
        buckets = [beside.with_name(f"bucket-{i:02d}") for i in range(BUCKETS)]
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in buckets]
            for source, raw in texts:
                count = counts.setdefault(source, dict.fromkeys(COUNTS, 0))
                count["read"] += 1
                text = clean(raw)
                if len(text) <= min_characters:
                    count["too_short"] += 1
                elif len(text) > max_characters:
                    count["too_long"] += 1
                elif fingerprint(text) in evaluation:
                    count["evaluation"] += 1
                else:
                    order = fingerprint(text, seed)
                    files[order * BUCKETS >> 64].write(f"{order:016x}\t{source}\t{text}\n")
        unique = (row for path in buckets for row in _unique(path, counts))
        _write(_sampled(unique, max_sentences, counts), beside)
        if not any(count["kept"] for count in counts.values()):
            raise UserError(f"no sentence is left for {target}: read, and why not kept, by source: {counts}")
    return counts


def _unique(path: Path, counts: dict[str, dict[str, int]]) -> Iterator[tuple[str, str]]:
    """(sentence, source) of a bucket in the order of the hash; of equal texts, the first by source."""
    previous = ""
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = sorted(file)
    for line in lines:
        order, source, text = line.rstrip("\n").split("\t")
        if order == previous:
            counts[source]["duplicate"] += 1
            continue
        previous = order
        yield text, source


def _sampled(
    unique: Iterable[tuple[str, str]], limit: int | None, counts: dict[str, dict[str, int]]
) -> Iterator[tuple[str, str]]:
    for i, (text, source) in enumerate(unique):
        if limit is not None and i >= limit:
            counts[source]["not_sampled"] += 1
        else:
            counts[source]["kept"] += 1
            yield text, source


def _write(rows: Iterable[tuple[str, str]], target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("sentence", pa.string()), ("source", pa.string())])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        batch: list[tuple[str, str]] = []

        def flush() -> None:
            columns = [list(column) for column in zip(*batch, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))
            batch.clear()

        for row in rows:
            batch.append(row)
            if len(batch) == ROW_GROUP:
                flush()
        if batch:
            flush()
