"""Validates the extracted sentences with Great Expectations; a failed expectation stops the pipeline.

python stages/validate.py

Writes data/validation.json and the Data Docs, reports/data_docs/index.html, also when an expectation fails.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.evaluation_texts import evaluation_texts
from leap.data.sentences import evaluation_prints
from leap.data.validation import validate, write_table
from leap.errors import UserError
from leap.files import write_sealed
from leap.model.locate import locate
from leap.settings import Settings
from leap.stage import run
from leap.storage import writing
from leap.unfinished import part_of

DATA = Path("data")
DOCS = Path("reports/data_docs")


def check(settings: Settings, _: argparse.Namespace) -> dict[str, Any]:
    data, rules = settings.data, settings.validation
    texts = evaluation_texts(DATA / "similarity", DATA / "retrieval", settings.similarity, settings.retrieval)
    tokenizer = locate(settings.teacher).folder / "tokenizer.json"
    # The table is of use to this stage alone: it never takes its place, and goes also after a kill.
    with writing(DATA / "sentences.db"), part_of(DATA / "sentences.db") as table:
        rows = write_table(
            DATA / "sentences.parquet",
            table,
            evaluation_prints(texts),
            tokenizer,
            settings.train.max_length,
        )
        results = validate(
            table,
            min_rows=rules.min_rows,
            characters=(data.min_characters + 1, data.longest_text),
            min_english=rules.min_english,
            max_truncated=rules.max_truncated,
            sources=list(data.sources),
            docs=DOCS,
        )
    failed = [result for result in results if not result["passed"]]
    write_sealed(DATA / "validation.json", {"passed": not failed, "expectations": results})
    if failed:
        lines = [f"  - {_told(result)}" for result in failed]
        raise UserError(
            f"{len(failed)} of {len(results)} expectations failed:\n"
            + "\n".join(lines)
            + f"\n{DOCS}/index.html "
            "shows them; mend data.sources, or the bounds of the block `validation` in params.yaml"
        )
    return {"stage": "validate", "rows": rows, "expectations": len(results)}


def _told(result: dict[str, Any]) -> str:
    column = f" of {result['column']}" if result["column"] else ""
    return f"{result['expectation']}{column} {result['parameters']}: observed {result['observed']}"


if __name__ == "__main__":
    run(check, __doc__)
