"""The whole validation of a project: its sentences as a table, the expectations, the record of the results."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.core.project import Project
from leap.core.sample_sizes import fewest_to_calibrate
from leap.core.settings import Settings
from leap.core.storage import writing
from leap.core.unfinished import part_of
from leap.data.beir import read_collection
from leap.data.cleaning import EvaluationTexts
from leap.data.evaluation_texts import evaluation_texts
from leap.data.pairs import read_pairs
from leap.data.sentence_file import read_sentences
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.validate.expectations import (
    JUDGEMENT,
    PAIR,
    TABLE,
    Suite,
    add_table,
    collection_rules,
    pair_rules,
    sentence_rules,
    validate,
    write_table,
)


@dataclass(frozen=True)
class Results:
    rows: int
    expectations: list[dict[str, Any]]


def check_extracted(settings: Settings, project: Project) -> Results:
    """Check the extracted sentences, and write data/validation.json and the Data Docs.

    Raises:
        UserError: an expectation failed; all that failed are named.
    """
    data, rules = settings.data, settings.validation
    texts = evaluation_texts(project.similarity, project.retrieval, settings.similarity, settings.retrieval)
    tokenizer = open_model(locate(settings.teacher).folder).tokenizer.backend()
    table = project.data / "sentences.db"
    docs = project.reports / "data_docs"
    # The table is of use to this stage alone: it never takes its place, and goes also after a kill.
    with writing(table), part_of(table) as temporary:
        rows = write_table(
            project.sentences, temporary, EvaluationTexts(texts), tokenizer, settings.train.max_length
        )
        suites = [
            Suite(
                "sentences",
                TABLE,
                [
                    *sentence_rules(
                        rules.min_rows,
                        (data.min_characters + 1, data.longest_text),
                        rules.min_english,
                        rules.max_truncated,
                        list(data.sources),
                    ),
                    *((each.type, each.arguments()) for each in rules.expectations),
                ],
            ),
            *_add_held_out(settings, project, temporary),
            *_add_pairs(settings, project, temporary),
            *_add_collections(settings, project, temporary),
        ]
        results = validate(temporary, suites, docs)
    failed = [result for result in results if not result["passed"]]
    write_with_checksum(project.data / "validation.json", {"passed": not failed, "expectations": results})
    if failed:
        lines = "\n".join(f"  - {_line(result)}" for result in failed)
        raise UserError(
            f"{len(failed)} of {len(results)} expectations failed:\n{lines}\n{docs}/index.html shows them; "
            "change data.sources, or the bounds of the block `validation` in params.yaml"
        )
    return Results(rows, results)


def _add_held_out(settings: Settings, project: Project, file: Path) -> Iterator[Suite]:
    """The held-out sentences, of which calibration needs so many."""
    wanted = settings.exit.calibration
    if wanted is not None:
        needed = fewest_to_calibrate(wanted.risk, wanted.confidence, wanted.keep)
        sentences = dict.fromkeys(read_sentences(project.held_out))
        add_table(file, "held_out", ["sentence"], ([sentence] for sentence in sentences))
        yield Suite("held_out", "held_out", [("expect_table_row_count_to_be_between", {"min_value": needed})])


def _add_pairs(settings: Settings, project: Project, file: Path) -> Iterator[Suite]:
    for name, source in settings.similarity.items():
        pairs = read_pairs(project.pairs(name))
        rows = zip(pairs.sentence1, pairs.sentence2, pairs.scores.tolist(), strict=True)
        add_table(file, f"pairs_{name}", PAIR, rows)
        yield Suite(f"pairs_{name}", f"pairs_{name}", pair_rules(1.0 if source.task == "duplicates" else 5.0))


def _add_collections(settings: Settings, project: Project, file: Path) -> Iterator[Suite]:
    for name in settings.retrieval:
        collection = read_collection(project.collection(name))
        rows = (
            (query, collection.queries[query], document, collection.corpus.get(document), grade)
            for query, grades in collection.qrels.items()
            for document, grade in grades.items()
        )
        add_table(file, f"collection_{name}", JUDGEMENT, rows)
        yield Suite(f"collection_{name}", f"collection_{name}", collection_rules(len(collection.queries)))


def _line(result: dict[str, Any]) -> str:
    column = f".{result['column']}" if result["column"] else ""
    place = f"{result['suite']}{column}"
    return f"{place}: {result['expectation']} {result['parameters']}: observed {result['observed']}"
