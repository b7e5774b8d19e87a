"""A table of the paper with ours beside it: its form, and what it is made from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leap.core.settings import Settings
from leap.report.differences import RunSetting, of_run, of_study, reasons
from leap.report.paper import Cell, Paper
from leap.report.study_results import Studies

Row = dict[str, Any]

# How columns of reference/paper.yaml read in the report, where not by their own name.
NAMES = {
    "spearman": "Spearman",
    "layer_reduction": "layer reduction, x",
    "speed_up": "speed-up, x",
    "expected_layers": "E[layers]",
    "exit_by_7": "exit by layer 7",
    "nn_at_10": "NN@10",
    "nn_fail": "NN@10 below 0.5",
    "below_50": "NN@10 below 0.5",
    "below_30": "NN@10 below 0.3",
    "full_ms": "full, ms",
    "exit_ms": "exited, ms",
    "max_exit_rate": "exit rate",
}


@dataclass(frozen=True)
class Pair:
    """One figure twice, null where one side has none; digits null: as many as it needs."""

    paper: float | None
    ours: float | None
    digits: int | None = 3

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; null where one is missing."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """A table of the paper beside ours.

    rows: label and a pair a column. `apart` says in what the settings differ; where nothing of ours is there
    `command` says how to get it.
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
        """Whether nothing of ours is there."""
        return all(pair.ours is None for _, pairs in self.rows for pair in pairs)


@dataclass(frozen=True)
class Sources:
    """All that the tables are made from."""

    settings: Settings
    summary: dict[str, Any]
    studies: Studies
    paper: Paper
    run: RunSetting = field(init=False)

    def __post_init__(self) -> None:
        """Reads the run's setting once."""
        object.__setattr__(self, "run", of_run(self.settings, self.summary))

    def variant(self, name: str) -> Row:
        """A variant of the pipeline's results, empty where there is none."""
        found: Row = self.summary["variants"].get(name) or {}
        return found

    def layer(self, variant: str, number: int) -> Row:
        """One layer's row of a variant, empty where it has none."""
        return next((row for row in self.variant(variant).get("layers") or [] if row["layer"] == number), {})

    def apart(self, kinds: tuple[str, ...], study: str | None = None, **sizes: int) -> list[str]:
        """In what the settings differ from the paper's."""
        known = study is None or study in self.settings.studies
        ours = of_study(self.settings, self.summary, study) if study and known else self.run
        return reasons(ours, self.paper.setting, kinds, sizes)


def paper_table(
    sources: Sources,
    key: str,
    columns: dict[str, int | None],
    label: Callable[[Row], str],
    ours: Callable[[Row], dict[str, float | None]],
    apart: list[str],
    command: str = "dvc repro",
    note: str = "",
) -> Table:
    """A table whose rows are the paper's: each column's figure beside ours of the same name.

    Args:
        sources: has the paper's table.
        key: of the paper's table.
        columns: the paper's columns that are shown, with their digits.
        label: a row's name.
        ours: our figures for a row of the paper.
        apart: in what the settings differ.
        command: how to measure what is missing.
        note: what else a reader must know.
    """
    table = sources.paper.tables[key]
    rows = []
    for row in table.rows:
        found = ours(row)
        pairs = [Pair(number(row.get(name)), found.get(name), digits) for name, digits in columns.items()]
        rows.append((label(row), pairs))
    names = [NAMES.get(name, name.replace("_", " ")) for name in columns]
    return Table(table.title, table.place, table.rule, names, rows, apart, command, note)


def layer_label(row: Row) -> str:
    """A row of a table by layer."""
    return f"layer {row['layer']}"


def theta_label(row: Row) -> str:
    """A row of a table by threshold."""
    return f"theta {row['threshold']:.2f}"


def change(before: float | None, after: float | None) -> float | None:
    """A relative change; null where one side is missing."""
    return after / before - 1 if before and after is not None else None


def number(value: Cell | None) -> float | None:
    """A cell as a number; words, marks and nothing are none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
