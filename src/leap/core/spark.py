"""A Spark cluster as the place of a stage's work: the same functions, a partition at a time (docs/scale.md).

The environment variable LEAP_SPARK names the cluster's master. It is no setting: what a stage writes is the same
with it and without, so nothing is to be run again where another machine has none.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from leap.core.errors import UserError

MASTER = "LEAP_SPARK"
# Rows of one Arrow batch between Python and Spark.
BATCH_ROWS = 10_000

Item = TypeVar("Item")
Rows = Iterable[tuple[Any, ...]]


def uses_spark() -> bool:
    """Return whether the environment names a cluster."""
    return bool(os.environ.get(MASTER))


@contextmanager
def spark_session() -> Iterator[Any]:
    """Open a session on the cluster that LEAP_SPARK names, and close it.

    The workers need this project's Python environment (PYSPARK_PYTHON; if it is not set, the path of this one)
    and the project's folder at the same path.

    Raises:
        UserError: pyspark or Java is missing, or a task raised it.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise UserError(f"{MASTER} is set, and this needs pyspark: pip install 'leap-pipeline[bulk]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = os.environ[MASTER]
    try:
        session = SparkSession.builder.master(master).appName("leap").getOrCreate()
    except PySparkException as error:
        raise UserError(
            f"Spark does not start with {MASTER}={master} ({_first_line(error)}): it needs Java 17 or 21 and the "
            "URL of a master, such as local[4] or spark://host:7077"
        ) from None
    try:
        yield session
    except PySparkException as error:
        message = re.search(r"\bUserError: (.*)", str(error))
        if message is None:
            raise
        raise UserError(message[1]) from None
    finally:
        session.stop()


def spread(session: Any, work: Callable[[Item], Rows], items: Sequence[Item], schema: str) -> Any:
    """Make a DataFrame of the rows that `work` gives for each item, one task an item.

    Args:
        session: of `spark_session`.
        work: runs on the workers, in this process's folder.
        items: what can be pickled.
        schema: of the rows, in Spark's words.
    """

    def of_places(places: Rows) -> Rows:
        return (row for (place,) in places for row in work(items[place]))

    return map_rows(session.range(0, len(items), 1, len(items)), of_places, schema)


def map_rows(frame: Any, work: Callable[[Rows], Rows], schema: str) -> Any:
    """Make a DataFrame of the rows that `work` makes of each partition's rows."""
    names = [field.split()[0] for field in schema.split(",")]
    return frame.mapInArrow(partial(_in_batches, work, names, Path.cwd()), schema)


def _in_batches(work: Callable[[Rows], Rows], names: list[str], folder: Path, batches: Iterable[Any]) -> Any:
    import pyarrow as pa

    os.chdir(folder)  # paths are relative to the project
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    rows = iter(work(row for values in columns for row in zip(*values, strict=True)))
    try:
        while some := list(islice(rows, BATCH_ROWS)):
            yield pa.RecordBatch.from_arrays([pa.array(values) for values in zip(*some, strict=True)], names)
    except UserError as error:
        raise UserError(str(error)) from None  # the driver knows it by its name, not by that of a subclass


def map_on_spark(function: Callable[[Item], dict[str, Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
    """Apply a function to each item as `map` does, one task an item; its results are JSON objects.

    Raises:
        UserError: as `spark_session`.
    """

    def work(numbered: tuple[int, Item]) -> Rows:
        yield numbered[0], json.dumps(function(numbered[1]))

    with spark_session() as session:
        made = spread(session, work, list(enumerate(items)), "number bigint, result string").collect()
    return [json.loads(row.result) for row in sorted(made)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
