"""What Great Expectations demands of the extracted sentences, its verdict, and its Data Docs.

Rules that Great Expectations has no words for are columns of their own that are derived from the sentence.
"""

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.data.sentences import fingerprint
from leap.errors import UserError
from leap.files import whole_folder

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["sentence", "source"]
ENGLISH_LETTERS = 0.6

_LETTERS = re.compile("[A-Za-z]")


def read_sentences(path: Path) -> "pd.DataFrame":
    """The extracted sentences.

    Raises:
        UserError: the file is missing or damaged.
    """
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_parquet(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `dvc repro extract` writes it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable parquet file ({error}): run `dvc repro extract`") from None


def derived(frame: "pd.DataFrame", evaluation: set[int], tokenizer: Path, max_length: int) -> "pd.DataFrame":
    """The frame with the columns that the expectations are about.

    `letters`: the share of ASCII letters among a sentence's characters without spaces; `leaked`: whether it
    is an evaluation text; `truncated`: whether it has more than `max_length` tokens, special ones included.
    A frame without the column `sentence` comes back as it is.

    Args:
        frame: the extracted sentences.
        evaluation: fingerprints of the evaluation texts.
        tokenizer: the teacher's tokenizer.json.
        max_length: tokens, train.max_length.
    """
    if "sentence" not in frame or not all(isinstance(text, str) for text in frame["sentence"]):
        return frame
    texts = frame["sentence"].tolist()
    return frame.assign(
        letters=[_letters(text) for text in texts],
        leaked=[fingerprint(text) in evaluation for text in texts],
        truncated=_longer(texts, tokenizer, max_length),
    )


def _letters(text: str) -> float:
    return len(_LETTERS.findall(text)) / max(1, len(text) - text.count(" "))


def _longer(texts: list[str], tokenizer: Path, max_length: int) -> list[bool]:
    from leap.model.tokenizer import read_tokenizer

    loaded = read_tokenizer(tokenizer)
    loaded.no_truncation()
    loaded.no_padding()
    return [
        len(encoded) > max_length
        for start in range(0, len(texts), 10_000)
        for encoded in loaded.encode_batch_fast(texts[start : start + 10_000])
    ]


def validate(
    frame: "pd.DataFrame",
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
        frame: from `derived`.
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
            context.data_sources.add_pandas("data")
            .add_dataframe_asset("sentences.parquet")
            .add_batch_definition_whole_dataframe("whole")
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
        results = checkpoint.run(batch_parameters={"dataframe": frame})
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
        gxe.ExpectTableColumnsToMatchOrderedList(column_list=[*COLUMNS, "letters", "leaked", "truncated"]),
        *(gxe.ExpectColumnValuesToBeOfType(column=column, type_="str") for column in COLUMNS),
        *(gxe.ExpectColumnValuesToNotBeNull(column=column) for column in COLUMNS),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column="sentence", min_value=characters[0], max_value=characters[1]
        ),
        gxe.ExpectColumnValuesToBeUnique(column="sentence"),
        gxe.ExpectColumnValuesToBeBetween(column="letters", min_value=ENGLISH_LETTERS, mostly=min_english),
        gxe.ExpectColumnValuesToBeInSet(column="leaked", value_set=[False]),
        gxe.ExpectColumnValuesToBeInSet(column="truncated", value_set=[False], mostly=1 - max_truncated),
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
