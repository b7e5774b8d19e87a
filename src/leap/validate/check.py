"""The whole validation of a project: its sentences as a table, the expectations, the record of the results."""

from dataclasses import dataclass
from typing import Any

from leap.core.errors import UserError
from leap.core.files import write_sealed
from leap.core.project import Project
from leap.core.settings import Settings
from leap.core.storage import writing
from leap.core.unfinished import part_of
from leap.data.cleaning import EvaluationTexts
from leap.data.evaluation_texts import evaluation_texts
from leap.models.folder import ModelFolder
from leap.models.locate import locate
from leap.validate.expectations import validate, write_table


@dataclass(frozen=True)
class Results:
    """How many rows were looked at, and what each expectation found."""

    rows: int
    expectations: list[dict[str, Any]]


def check_extracted(settings: Settings, project: Project) -> Results:
    """Check the extracted sentences, and write data/validation.json and the Data Docs.

    Raises:
        UserError: an expectation failed; all that failed are named.
    """
    data, rules = settings.data, settings.validation
    texts = evaluation_texts(project.similarity, project.retrieval, settings.similarity, settings.retrieval)
    tokenizer = ModelFolder.read(locate(settings.teacher).folder).transformer / "tokenizer.json"
    table = project.data / "sentences.db"
    docs = project.reports / "data_docs"
    # The table is of use to this stage alone: it never takes its place, and goes also after a kill.
    with writing(table), part_of(table) as temporary:
        rows = write_table(
            project.sentences, temporary, EvaluationTexts(texts), tokenizer, settings.train.max_length
        )
        results = validate(
            temporary,
            min_rows=rules.min_rows,
            characters=(data.min_characters + 1, data.longest_text),
            min_english=rules.min_english,
            max_truncated=rules.max_truncated,
            sources=list(data.sources),
            docs=docs,
        )
    failed = [result for result in results if not result["passed"]]
    write_sealed(project.data / "validation.json", {"passed": not failed, "expectations": results})
    if failed:
        lines = "\n".join(f"  - {_line(result)}" for result in failed)
        raise UserError(
            f"{len(failed)} of {len(results)} expectations failed:\n{lines}\n{docs}/index.html shows them; "
            "change data.sources, or the bounds of the block `validation` in params.yaml"
        )
    return Results(rows, results)


def _line(result: dict[str, Any]) -> str:
    column = f" of {result['column']}" if result["column"] else ""
    return f"{result['expectation']}{column} {result['parameters']}: observed {result['observed']}"
