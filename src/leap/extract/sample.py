"""Training sentences: a seeded sample of the unique texts, some of them held out, as parquet."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.settings.data import PassageSettings
from leap.core.spark import uses_spark
from leap.data.cleaning import EvaluationTexts
from leap.extract.passages import add_passages
from leap.extract.unique_on_spark import unique_on_spark
from leap.extract.unique_texts import Cleaning, Counts, no_counts, unique_in_buckets

ROW_GROUP = 20_000


def write_sample(
    parts: Sequence[Iterable[tuple[str, str]]],
    target: Path,
    *,
    seed: int,
    min_characters: int,
    max_characters: int,
    max_sentences: int | None,
    evaluation: EvaluationTexts,
    split: bool = False,
    passages: PassageSettings | None = None,
    held_out: tuple[float, Path] | None = None,
) -> Counts:
    """Write the unique sentences longer than `min_characters` as parquet; the input's order does not matter.

    Args:
        parts: (source, text) pairs, in one part or several; where LEAP_SPARK names a cluster, each part is a task.
        target: the parquet file with the columns `sentence` and `source`, written whole.
        seed: of the sample and of the order.
        min_characters: a sentence must be longer (paper, Appendix K: > 20).
        max_characters: and not longer than this.
        max_sentences: size of the sample; None takes all.
        evaluation: texts that must not be trained on.
        split: splits a text that is longer than `max_characters` into its sentences; else it is left out.
        passages: adds passages of the sample's sentences; None adds none.
        held_out: this share of the sentences goes to the second file instead.

    Returns:
        Counts by source: read = too_short + too_long + evaluation + duplicate + held_out + not_sampled +
        kept; passages come in addition. Of a text that is split, `split`, each sentence is read.

    Raises:
        UserError: nothing is left.
    """
    cleaning = Cleaning(seed, min_characters, max_characters, split, evaluation)
    counts = no_counts()
    with whole_file(target) as temporary, ExitStack() as stack:
        sample = stack.enter_context(_Rows.to(temporary))
        share, aside = held_out or (0.0, None)
        other = stack.enter_context(_Rows.to(stack.enter_context(whole_file(aside)))) if aside else None
        # The temporary file's place is a folder of its own, which goes at the end.
        unique_texts = unique_on_spark if uses_spark() else unique_in_buckets
        unique = unique_texts(parts, cleaning, temporary.parent, counts)
        rows = _draw_sample(unique, max_sentences, share, seed, other, counts)
        for row in add_passages(rows, passages, seed, counts) if passages else rows:
            sample.add(row)
        if not any(count["kept"] for count in counts.values()):
            raise UserError(f"no sentence is left for {target}: read, and why not kept, by source: {dict(counts)}")
    return counts


def _draw_sample(
    unique: Iterable[tuple[str, str]],
    limit: int | None,
    held_out: float,
    seed: int,
    aside: "_Rows | None",
    counts: Counts,
) -> Iterator[tuple[str, str]]:
    generator, taken = random.Random(seed), 0
    for text, source in unique:
        if limit is not None and taken >= limit:
            counts[source]["not_sampled"] += 1
        elif aside is not None and generator.random() < held_out:
            counts[source]["held_out"] += 1
            aside.add((text, source))
        else:
            counts[source]["kept"] += 1
            taken += 1
            yield text, source


class _Rows:
    """A parquet file of sentences and their sources that is written a row group at a time."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer, self._schema = writer, schema
        self._batch: list[tuple[str, str]] = []

    @classmethod
    @contextmanager
    def to(cls, path: Path) -> Iterator["_Rows"]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("sentence", pa.string()), ("source", pa.string())])
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            rows = cls(writer, schema)
            yield rows
            rows._flush()

    def add(self, row: tuple[str, str]) -> None:
        self._batch.append(row)
        if len(self._batch) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._batch:
            columns = [list(column) for column in zip(*self._batch, strict=True)]
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._batch.clear()
