"""The paper's tables with our figures, one renderer for all: reference/paper.yaml says where each of ours is.

A path in that file leads into reports/summary.json (`variants`), studies/<name>.json (`studies`) or the settings.
A figure that a command of this project can still make is null; a path that leads nowhere under these settings (a
layer that the model does not have, a collection that is not a block) takes its row or column out of the table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from leap.core.settings import Settings
from leap.report.differences import LATENCY, QUALITY, RETRIEVAL, our_setting, reasons
from leap.report.paper import Cell, Paper, PaperTable
from leap.report.study_results import Studies

KINDS = {"quality": QUALITY, "retrieval": RETRIEVAL, "latency": LATENCY, "nothing": ()}
_STEP = re.compile(r"[^.\[]+(?:\[[^\]]*\])?")
_CONDITION = re.compile(r"(\w+)(>=|=)(.*)")


@dataclass(frozen=True)
class Pair:
    """One figure twice; null where the paper has none, or ours is not measured yet.

    digits: null shows as many as there are.
    possible: false where these settings can never give ours.
    """

    paper: float | None
    ours: float | None
    digits: int | None = 3
    possible: bool = True

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; null where one is missing or they are settings, not measurements."""
        known = self.paper is not None and self.ours is not None and self.digits is not None
        return self.ours - self.paper if known else None  # type: ignore[operator]


@dataclass(frozen=True)
class Table:
    """A table of the paper with ours in it.

    rows: label and a pair a column. `command` makes what is missing; `apart` says how its setting differs.
    """

    title: str
    place: str
    rule: str | None
    columns: list[str]
    rows: list[tuple[str, list[Pair]]]
    apart: list[str]
    command: str
    note: str = ""

    @property
    def missing(self) -> bool:
        return all(pair.ours is None for _, pairs in self.rows for pair in pairs)

    @property
    def incomplete(self) -> bool:
        return any(pair.ours is None and pair.possible for _, pairs in self.rows for pair in pairs)


def paper_tables(settings: Settings, summary: dict[str, Any], studies: Studies, paper: Paper) -> dict[str, Table]:
    """Make every table of the paper that these settings can fill, in the paper's order, and its single figures."""
    waiting = {name: {"variants": dict.fromkeys(block.variants)} for name, block in settings.studies.items()}
    results = {
        "variants": summary["variants"],
        "studies": waiting | studies,
        "settings": settings.model_dump(),
    }
    tables = {key: _table(table, settings, summary, results, paper) for key, table in paper.tables.items()}
    tables["figures"] = _single_figures(settings, summary, results, paper)
    return {key: table for key, table in tables.items() if table.rows}


def look_up(results: dict[str, Any], expression: str) -> float | None:
    """Return the figure of a path, of "a / b" or "a / b - 1"; null where it is not measured yet.

    Raises:
        LookupError: the path leads nowhere.
    """
    ratio, change = expression.removesuffix(" - 1"), expression.endswith(" - 1")
    values = [_mean(list(_walk(results, _STEP.findall(path)))) for path in ratio.split(" / ")]
    if len(values) == 1 or None in values:
        return None if None in values else values[0]
    over, under = values
    return over / under - change if over is not None and under else None


def _walk(content: Any, steps: list[str]) -> Iterator[float | None]:
    """Every value at the end of a path; null where the content ends in null before."""
    if content is None or not steps:
        yield None if content is None else float(content)
        return
    name, _, conditions = steps[0].rstrip("]").partition("[")
    names = list(content) if name == "*" else name.split("|")
    if not isinstance(content, dict) or not names or any(name not in content for name in names):
        raise LookupError(steps[0])
    for each in names:
        value = content[each]
        if not conditions or value is None:
            yield from _walk(value, steps[1:])
            continue
        chosen = [item for item in value if all(_holds(item, text) for text in conditions.split(","))]
        if not chosen:
            raise LookupError(steps[0])
        for item in chosen:
            yield from _walk(item, steps[1:])


def _holds(item: dict[str, Any], condition: str) -> bool:
    match = _CONDITION.fullmatch(condition)
    assert match is not None, condition
    key, sign, text = match.groups()
    value = item.get(key)
    if isinstance(value, int | float) and text[0].isdigit():
        return bool(value >= float(text) if sign == ">=" else value == float(text))
    return bool(value == text)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _pair(results: dict[str, Any], path: str, paper: float | None, digits: int | None) -> Pair:
    try:
        return Pair(paper, look_up(results, path), digits)
    except LookupError:
        return Pair(paper, None, digits, possible=False)


def _table(
    table: PaperTable, settings: Settings, summary: dict[str, Any], results: dict[str, Any], paper: Paper
) -> Table:
    rows = []
    for row in table.rows:
        # The path of a cell may hold a name of the same row: twice, and every name is filled in.
        paths = [column.path.format(**row).format(**row) for column in table.columns.values()]
        cells = zip(table.columns.items(), paths, strict=True)
        pairs = [_pair(results, path, number(row.get(name)), column.digits) for (name, column), path in cells]
        if any(pair.possible for pair in pairs):
            rows.append((table.label_rows.format(**row), pairs))
    used = [any(pairs[i].possible for _, pairs in rows) for i in range(len(table.columns))]
    names = [column.name or name.replace("_", " ") for name, column in table.columns.items()]
    study = next(
        (column.path.split(".")[1] for column in table.columns.values() if "studies." in column.path), None
    )
    sizes = {name: int(paper.figures[figure].value) for name, figure in table.sizes.items()}
    ours = our_setting(settings, summary, study if study in settings.studies else None)
    return Table(
        title=table.title,
        place=table.place,
        rule=table.rule,
        columns=[name for name, shown in zip(names, used, strict=True) if shown],
        rows=[(label, [pair for pair, shown in zip(pairs, used, strict=True) if shown]) for label, pairs in rows],
        apart=reasons(ours, paper.setting, KINDS[table.depends], sizes),
        command=f"make study-{study}" if study else "dvc repro",
        note=table.note,
    )


def _single_figures(settings: Settings, summary: dict[str, Any], results: dict[str, Any], paper: Paper) -> Table:
    """The figures of the paper's text that we measure too; those of a study once it has run."""
    rows = []
    for name, figure in paper.figures.items():
        pair = _pair(results, figure.path, figure.value, 3) if figure.path else None
        waits = pair is not None and pair.ours is None and "studies." in str(figure.path)
        if pair is not None and pair.possible and not waits:
            rows.append((f"{name.replace('_', ' ')} ({figure.place})", [pair]))
    apart = reasons(our_setting(settings, summary), paper.setting, (*QUALITY, "hardware"))
    note = "The fixed depth and the published model are of studies, with their sizes; the rest is the pipeline's."
    return Table("Single figures of the text", "throughout", None, ["value"], rows, apart, "dvc repro", note)


def number(value: Cell | None) -> float | None:
    """Return a cell as a number; words, marks and nothing are none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
