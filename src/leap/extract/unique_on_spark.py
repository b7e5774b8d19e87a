"""The unique texts of a corpus by a Spark cluster: the functions, and so the rows, of one machine."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from leap.core.spark import Rows, map_rows, spark_session, spread
from leap.data.tables import file_rows
from leap.extract.unique_texts import Cleaning, Counts, bucket_of, clean_texts, drop_duplicates, no_counts


def unique_on_spark(
    parts: Sequence[Iterable[tuple[str, str]]], cleaning: Cleaning, scratch: Path, counts: Counts
) -> Iterator[tuple[str, str]]:
    """Yield what `unique_in_buckets` yields; a task reads and cleans a part, another sorts a bucket.

    Spark moves the sentences between them, into as many buckets as there are parts or cores.
    Each part can be pickled; `scratch` is an empty folder that all workers can write.

    Raises:
        UserError: as `spark_session`, and as reading a part.
    """
    with spark_session() as session:
        shared = session.sparkContext.broadcast(cleaning)
        buckets = max(len(parts), session.sparkContext.defaultParallelism)

        def clean(part: Iterable[tuple[str, str]]) -> Rows:
            counted = no_counts()
            for order, source, text in clean_texts(part, shared.value, counted):
                yield bucket_of(order, buckets), order, source, text
            yield 0, "", "", json.dumps(counted)  # counts travel as rows: a task that is run again counts once

        cleaned = spread(session, clean, parts, "bucket bigint, order string, source string, text string")
        ordered = cleaned.repartitionById(buckets, cleaned.bucket.cast("int")).sortWithinPartitions(
            "order", "source", "text"
        )
        unique = map_rows(ordered, _unique, "text string, source string")
        unique.write.parquet((scratch / "unique").resolve().as_uri())
    for file in sorted((scratch / "unique").glob("part-*.parquet")):
        for row in file_rows(file, ["text", "source"]):
            text, source = row.values
            if source:
                yield text, source
            else:
                _add(json.loads(text), counts)


def _unique(rows: Rows) -> Rows:
    counted = no_counts()

    def sentences() -> Iterator[tuple[str, str, str]]:
        for _, order, source, text in rows:
            if order:
                yield order, source, text
            else:
                _add(json.loads(text), counted)

    yield from drop_duplicates(sentences(), counted)
    yield json.dumps(counted), ""


def _add(counted: Counts, counts: Counts) -> None:
    for source, count in counted.items():
        for key, number in count.items():
            counts[source][key] += number
