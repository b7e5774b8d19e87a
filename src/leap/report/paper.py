"""The paper's figures, read from reference/paper.yaml: to be compared with ours, never mixed with them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from leap.core.errors import UserError
from leap.core.settings.base import Block

REFERENCE = Path("reference/paper.yaml")

Cell = bool | int | float | str


class PaperSetting(Block):
    """The setting of the paper's results; a run that differs says in what (`leap.report.differences`)."""

    student: str
    student_layers: int
    student_width: int
    teacher: str
    teacher_layers: int
    data: str
    sentences: int
    epochs: int
    similarity_set: str
    hardware: str
    precision: str
    seeds: int


class Column(Block):
    """A column that we measure too.

    path: to our figure (`leap.report.paper_tables`); `{name}` stands for a cell of the row.
    digits: null shows as many as there are, and no difference: for settings.
    """

    path: str
    name: str | None = None
    digits: int | None = 3


class PaperTable(Block):
    """A table or drawn figure of the paper; a list outside any table has no label."""

    label: str | None
    place: str
    title: str
    # Which exit rule its numbers can only come from: our reading (docs/paper.md), not the paper's words.
    rule: Literal["converged", "near_final"] | None = None
    # What of the setting its figures depend on, and the figures that hold its own sizes where it has some.
    depends: Literal["quality", "retrieval", "latency", "nothing"] = "quality"
    sizes: dict[str, str] = {}
    # A row's label, made from its cells, and the columns with ours; a table without any is not shown.
    label_rows: str = "{name}"
    columns: dict[str, Column] = {}
    note: str = ""
    rows: list[dict[str, Cell]]


class PaperFigure(Block):
    """A figure of the text; `bound` where the paper says about, above or below; `path` leads to ours."""

    value: float
    place: str
    bound: Literal["about", "above", "below"] | None = None
    path: str | None = None


class OneOf(Block):
    """One of several values that the paper gives for one thing."""

    value: Cell
    place: str


class Disagreement(Block):
    """One thing for which the paper gives several values."""

    what: str
    values: list[OneOf]


class Paper(Block):
    """Everything of reference/paper.yaml."""

    title: str
    setting: PaperSetting
    tables: dict[str, PaperTable]
    figures: dict[str, PaperFigure]
    disagreements: list[Disagreement]


def read_paper(path: Path = REFERENCE) -> Paper:
    """Read and check the file; UserError lists all mistakes."""
    try:
        content: Any = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        return Paper.model_validate(content)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: it belongs to the project, `git checkout {path}`") from None
    except YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        lines = [f"  - {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError(f"{path} has {len(lines)} mistake(s):\n" + "\n".join(lines)) from None
