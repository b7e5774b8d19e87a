"""Great Expectations on what was extracted: its demands, its verdict and its Data Docs.

The sentences are judged as a table of SQLite, by queries: memory stays the same however many there are. Rules
that Great Expectations has no words for are columns of their own that are derived from the sentence.
"""

import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from leap.core.errors import UserError
from leap.core.files import whole_folder
from leap.data.cleaning import EvaluationTexts
from leap.validate.local_docs import make_local

COLUMNS = ["sentence", "source"]
DERIVED = {"letters": "REAL", "leaked": "INTEGER", "truncated": "INTEGER"}
ENGLISH_LETTERS = 0.6
TABLE = "sentences"

_BATCH = 10_000
_LETTERS = re.compile("[A-Za-z]")

Batch = dict[str, list[Any]]


def write_table(
    sentences: Path, target: Path, evaluation: EvaluationTexts, tokenizer: Tokenizer, max_length: int
) -> int:
    """Write the table of the sentences, and the derived columns that expectations are about; return its rows.

    `letters`: the share of ASCII letters among a sentence's characters without spaces; `leaked`: 1 for an
    evaluation text; `truncated`: 1 for more than `max_length` tokens, special ones included. They are left
    out where the file has no column `sentence` of text.

    Raises:
        UserError: the file is missing or damaged.
    """
    longer = _Longer(tokenizer, max_length)
    rows = 0
    with closing(sqlite3.connect(target)) as database:
        database.execute("pragma journal_mode = off")  # a file that nobody needs after a crash
        for types, batch in _batches(sentences):
            if types.get("sentence") == "TEXT":
                texts = ["" if text is None else text for text in batch["sentence"]]
                types = types | DERIVED
                batch["letters"] = [_letters(text) for text in texts]
                batch["leaked"] = [int(evaluation.occur_in(text)) for text in texts]
                batch["truncated"] = longer(texts)
            if rows == 0:
                columns = ", ".join(f"{_quote(name)} {_quote(kind)}" for name, kind in types.items())
                database.execute(f"create table {TABLE} ({columns})")
                places = ", ".join("?" * len(types))
                insert = f"insert into {TABLE} values ({places})"  # nosec B608  # a constant and question marks
            database.executemany(insert, zip(*(batch[name] for name in types), strict=True))
            rows += len(batch[next(iter(types))])
        database.commit()
    return rows


def _letters(text: str) -> float:
    return len(_LETTERS.findall(text)) / max(1, len(text) - text.count(" "))


class _Longer:
    """Tells which texts have more tokens than the training reads."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, texts: list[str]) -> list[int]:
        return [int(len(encoding) > self._max_length) for encoding in self._tokenizer.encode_batch_fast(texts)]


def _batches(path: Path) -> Iterator[tuple[dict[str, str], Batch]]:
    """SQLite's type by column, and the next rows; an empty file has one batch without rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            types = {field.name: _sqlite_type(field.type) for field in file.schema_arrow}
            if file.metadata.num_rows == 0:
                yield types, {name: [] for name in types}
            for batch in file.iter_batches(_BATCH):
                yield types, batch.to_pydict()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `dvc repro extract` writes it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable parquet file ({error}): run `dvc repro extract`") from None


def _sqlite_type(kind: Any) -> str:
    import pyarrow as pa

    return "TEXT" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind).upper()


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Suite:
    """Demands on one table.

    name: of the suite, and of its page.
    table: of the SQLite file.
    rules: Great Expectations' names of expectations, each with its arguments.
    """

    name: str
    table: str
    rules: list[tuple[str, dict[str, Any]]]


def sentence_rules(
    min_rows: int, characters: tuple[int, int], min_english: float, max_truncated: float, sources: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return what is demanded of the training sentences.

    Args:
        characters: the shortest and the longest sentence, in characters.
        min_english: share of rows of which at least 60 % of the characters are ASCII letters.
        max_truncated: share of rows that may be longer than the training's maximum.
        sources: names that the column `source` may hold.
    """
    lengths = {"min_value": characters[0], "max_value": characters[1]}
    letters = {"min_value": ENGLISH_LETTERS, "mostly": min_english}
    # The row count first: an empty table passes every rule about a column.
    return [
        ("expect_table_row_count_to_be_between", {"min_value": min_rows}),
        ("expect_table_columns_to_match_ordered_list", {"column_list": [*COLUMNS, *DERIVED]}),
        *(("expect_column_values_to_be_of_type", {"column": name, "type_": "TEXT"}) for name in COLUMNS),
        *(("expect_column_values_to_not_be_null", {"column": name}) for name in COLUMNS),
        ("expect_column_value_lengths_to_be_between", {"column": "sentence", **lengths}),
        ("expect_column_values_to_be_unique", {"column": "sentence"}),
        ("expect_column_values_to_be_between", {"column": "letters", **letters}),
        ("expect_column_values_to_be_in_set", {"column": "leaked", "value_set": [0]}),
        (
            "expect_column_values_to_be_in_set",
            {"column": "truncated", "value_set": [0], "mostly": 1 - max_truncated},
        ),
        ("expect_column_values_to_be_in_set", {"column": "source", "value_set": sources}),
    ]


def pair_rules(highest: float) -> list[tuple[str, dict[str, Any]]]:
    """Return what is demanded of a set of scored pairs, whose scores go from 0 to `highest`."""
    return [
        ("expect_table_row_count_to_be_between", {"min_value": 2}),
        *(("expect_column_value_lengths_to_be_between", {"column": name, "min_value": 1}) for name in PAIR[:2]),
        ("expect_column_values_to_be_between", {"column": "score", "min_value": 0, "max_value": highest}),
        ("expect_column_unique_value_count_to_be_between", {"column": "score", "min_value": 2}),
    ]


def collection_rules(queries: int) -> list[tuple[str, dict[str, Any]]]:
    """Return what is demanded of a collection, a row a judgement: all queries are there, no pair twice."""
    return [
        ("expect_table_row_count_to_be_between", {"min_value": 1}),
        ("expect_column_unique_value_count_to_be_between", {"column": "query_id", "min_value": queries}),
        ("expect_compound_columns_to_be_unique", {"column_list": ["query_id", "document_id"]}),
        ("expect_column_value_lengths_to_be_between", {"column": "query", "min_value": 1}),
        ("expect_column_values_to_be_between", {"column": "grade", "min_value": 0, "mostly": 0.5}),
        # A judged document without a text still counts in the ideal ranking, as in BEIR; most must be there.
        ("expect_column_values_to_not_be_null", {"column": "document", "mostly": 0.5}),
    ]


PAIR = ("sentence1", "sentence2", "score")
JUDGEMENT = ("query_id", "query", "document_id", "document", "grade")


def add_table(file: Path, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"create table {_quote(name)} ({', '.join(map(_quote, columns))})")
        places = ", ".join("?" * len(columns))
        database.executemany(f"insert into {_quote(name)} values ({places})", rows)  # nosec B608  # quoted
        database.commit()


def validate(table: Path, suites: Sequence[Suite], docs: Path) -> list[dict[str, Any]]:
    """Run the expectations and build their Data Docs, whose first page is `docs/index.html`.

    Args:
        table: the SQLite file; a relative path keeps this machine's out of the pages.
        suites: what is demanded of which of its tables.
        docs: the folder of the Data Docs, written whole; its pages need no network.

    Returns:
        One entry an expectation: `suite`, `expectation`, `column`, `parameters`, `passed`, `observed`.

    Raises:
        UserError: Great Expectations has no such expectation, or it does not take such arguments.
    """
    gx = _great_expectations()
    with whole_folder(docs) as temporary:
        context = gx.get_context(mode="ephemeral", project_config=_project(temporary))
        source = context.data_sources.add_sqlite("data", connection_string=f"sqlite:///{table}")
        definitions = []
        for suite in suites:
            asset = source.add_table_asset(suite.name, table_name=suite.table)
            rules = [_expectation(gx, name, arguments) for name, arguments in suite.rules]
            definitions.append(
                context.validation_definitions.add(
                    gx.ValidationDefinition(
                        name=suite.name,
                        data=asset.add_batch_definition_whole_table("whole"),
                        suite=context.suites.add(gx.ExpectationSuite(suite.name, expectations=rules)),
                    )
                )
            )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name="extract",
                validation_definitions=definitions,
                actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
                result_format={"result_format": "SUMMARY", "partial_unexpected_count": 5},
            )
        )
        run = checkpoint.run(run_id=gx.RunIdentifier(run_name="extract"))
        entries = [
            {"suite": result.suite_name, **_entry(item)}
            for result in run.run_results.values()
            for item in result.results
        ]
        make_local(temporary, entries)
    return entries


def _expectation(gx: Any, name: str, arguments: dict[str, Any]) -> Any:
    kind = getattr(gx.expectations, "".join(part.capitalize() for part in name.split("_")), None)
    if kind is None:
        raise UserError(f"validation.expectations: Great Expectations has no {name!r}: correct its name")
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"validation.expectations: {name}: {' '.join(str(error).split())}") from None


def _great_expectations() -> Any:
    # Read at import: no usage statistics leave this machine.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    return gx


def _project(docs: Path) -> Any:
    """A project in memory, whose only file output is the Data Docs; no bars, no usage statistics."""
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    return DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
        analytics_enabled=False,
        data_docs_sites={
            "sentences": {
                "class_name": "SiteBuilder",
                "show_how_to_buttons": False,
                "store_backend": {
                    "class_name": "TupleFilesystemStoreBackend",
                    "base_directory": str(docs.resolve()),
                },
                "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            }
        },
    )


def _entry(item: Any) -> dict[str, Any]:
    parameters = dict(item.expectation_config.kwargs)
    parameters.pop("batch_id", None)
    result = item.to_json_dict()["result"]
    observed = result.get("observed_value")
    if observed is None and "unexpected_count" in result:
        observed = {
            "unexpected": result["unexpected_count"],
            "of": result["element_count"],
            "examples": result.get("partial_unexpected_list", []),
        }
    elif observed is None:
        observed = _error_message(item.exception_info)
    return {
        "expectation": item.expectation_config.type,
        "column": parameters.pop("column", None),
        "parameters": parameters,
        "passed": bool(item.success),
        "observed": observed,
    }


def _error_message(information: dict[str, Any]) -> str:
    """The message of the error that prevented a judgement, for example a missing column."""
    if "exception_message" in information:
        return str(information["exception_message"])
    return "; ".join(str(entry["exception_message"]) for entry in information.values())
