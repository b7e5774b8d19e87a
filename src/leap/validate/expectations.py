"""What Great Expectations demands of the extracted sentences, its verdict, and its Data Docs.

The sentences are judged as a table of SQLite, by queries: memory stays the same however many there are. Rules
that Great Expectations has no words for are columns of their own that are derived from the sentence.
"""

import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import whole_folder
from leap.data.cleaning import EvaluationTexts

COLUMNS = ["sentence", "source"]
DERIVED = {"letters": "REAL", "leaked": "INTEGER", "truncated": "INTEGER"}
ENGLISH_LETTERS = 0.6
TABLE = "sentences"

_BATCH = 10_000
_LETTERS = re.compile("[A-Za-z]")

Batch = dict[str, list[Any]]


def write_table(
    sentences: Path, target: Path, evaluation: EvaluationTexts, tokenizer: Path, max_length: int
) -> int:
    """Writes the table of the sentences, with the columns that the expectations are about besides.

    `letters`: the share of ASCII letters among a sentence's characters without spaces; `leaked`: 1 for an
    evaluation text; `truncated`: 1 for more than `max_length` tokens, special ones included. They are left
    out where the file has no column `sentence` of text.

    Args:
        sentences: data/sentences.parquet.
        target: the SQLite file.
        evaluation: the evaluation texts.
        tokenizer: the teacher's tokenizer.json.
        max_length: tokens, train.max_length.

    Returns:
        The rows.

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
                columns = ", ".join(f"{_quoted(name)} {_quoted(kind)}" for name, kind in types.items())
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
    """Whether texts have more tokens than the training reads."""

    def __init__(self, tokenizer: Path, max_length: int) -> None:
        from leap.models.tokenizer import read_tokenizer

        self._tokenizer, self._max_length = read_tokenizer(tokenizer), max_length
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, texts: list[str]) -> list[int]:
        return [int(len(found) > self._max_length) for found in self._tokenizer.encode_batch_fast(texts)]


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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def validate(
    table: Path,
    *,
    min_rows: int,
    characters: tuple[int, int],
    min_english: float,
    max_truncated: float,
    sources: list[str],
    docs: Path,
) -> list[dict[str, Any]]:
    """Runs the expectations and builds their Data Docs, whose first page is `docs/index.html`.

    Args:
        table: the SQLite file that `write_table` wrote; a relative path keeps this machine's out of the page.
        min_rows: the least rows.
        characters: the shortest and the longest sentence, in characters.
        min_english: share of rows of which at least 60 % of the characters are ASCII letters.
        max_truncated: share of rows that may be longer than the training's maximum.
        sources: names that the column `source` may hold.
        docs: the folder of the Data Docs, written whole.

    Returns:
        One entry an expectation: `expectation`, `column`, `parameters`, `passed`, `observed`.
    """
    gx = _great_expectations()
    rules = _expectations(gx.expectations, min_rows, characters, min_english, max_truncated, sources)
    with whole_folder(docs) as beside:
        context = gx.get_context(mode="ephemeral", project_config=_project(beside))
        batch = (
            context.data_sources.add_sqlite("data", connection_string=f"sqlite:///{table}")
            .add_table_asset("sentences.parquet", table_name=TABLE)
            .add_batch_definition_whole_table("whole")
        )
        suite = context.suites.add(gx.ExpectationSuite("sentences", expectations=rules))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name="sentences", data=batch, suite=suite)
        )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name="extract",
                validation_definitions=[definition],
                actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
                result_format={"result_format": "SUMMARY", "partial_unexpected_count": 5},
            )
        )
        results = checkpoint.run()
    return [_entry(item) for result in results.run_results.values() for item in result.results]


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


def _expectations(
    gxe: Any,
    min_rows: int,
    characters: tuple[int, int],
    min_english: float,
    max_truncated: float,
    sources: list[str],
) -> list[Any]:
    # The row count first: an empty table passes every rule about a column.
    return [
        gxe.ExpectTableRowCountToBeBetween(min_value=min_rows),
        gxe.ExpectTableColumnsToMatchOrderedList(column_list=[*COLUMNS, *DERIVED]),
        *(gxe.ExpectColumnValuesToBeOfType(column=column, type_="TEXT") for column in COLUMNS),
        *(gxe.ExpectColumnValuesToNotBeNull(column=column) for column in COLUMNS),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column="sentence", min_value=characters[0], max_value=characters[1]
        ),
        gxe.ExpectColumnValuesToBeUnique(column="sentence"),
        gxe.ExpectColumnValuesToBeBetween(column="letters", min_value=ENGLISH_LETTERS, mostly=min_english),
        gxe.ExpectColumnValuesToBeInSet(column="leaked", value_set=[0]),
        gxe.ExpectColumnValuesToBeInSet(column="truncated", value_set=[0], mostly=1 - max_truncated),
        gxe.ExpectColumnValuesToBeInSet(column="source", value_set=sources),
    ]


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
        observed = _raised(item.exception_info)
    return {
        "expectation": item.expectation_config.type,
        "column": parameters.pop("column", None),
        "parameters": parameters,
        "passed": bool(item.success),
        "observed": observed,
    }


def _raised(information: dict[str, Any]) -> str:
    """The message of the error that kept an expectation from being judged, for example a missing column."""
    if "exception_message" in information:
        return str(information["exception_message"])
    return "; ".join(str(entry["exception_message"]) for entry in information.values())
