"""The report's pages: HTML that needs nothing else, from the summary, its words, tables and pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from leap.core.grid import shown, signed, tone
from leap.evidence.bounds import ENOUGH_NEIGHBOURS
from leap.report import plot_data, plots
from leap.report.findings import against_smaller, finding, machine, next_steps, overview
from leap.report.paper_tables import Table
from leap.report.sections import sections
from leap.report.study_results import Studies

TEMPLATES = Path(__file__).parent / "templates"
# The pictures of the first screen; the last one is drawn where sentences leave at more than one layer.
FIRST = ("frontier", "similarity", "exits")

Rows = list[dict[str, Any]]
Pictures = dict[str, tuple[str, str, Rows]]


def pictures(summary: dict[str, Any], evaluations: Path, studies: Studies) -> Pictures:
    """Draw every picture that has data, by file name: (caption, SVG, the rows behind it)."""
    layers = plot_data.layer_rows(summary)
    by_depth = ("layers computed by a sentence", "Spearman")

    def curves(*arguments: Any) -> Callable[[Rows], str]:
        return lambda rows: plots.curves(rows, *arguments)

    draw: dict[str, tuple[str, Rows, Callable[[Rows], str]]] = {
        "similarity": (
            "Similarity of each layer to the last one",
            layers,
            curves("layer", "similarity_to_final", ("layer", "cosine to the last layer")),
        ),
        "quality": (
            "Quality by depth: cut at a layer (line), other rules (dots), full depth (hollow), exited (filled)",
            plot_data.quality_rows(summary),
            plots.quality,
        ),
        "exits": ("Where sentences leave", plot_data.exit_rows(summary), plots.exit_distribution),
        "neighbours": (
            f"Neighbours that stay (NN@10) at each layer; dotted: the checklist's {ENOUGH_NEIGHBOURS:g}",
            layers,
            curves("layer", "nn_at_10", ("layer", "NN@10"), ENOUGH_NEIGHBOURS),
        ),
        "stability": (
            "Each layer against the one before, which is what the exit rule sees",
            layers,
            curves("layer", "stability", ("layer", "cosine to the layer before")),
        ),
        "contraction": (
            "Contraction: a layer's step over the one before, median; below 1 layers move less and less",
            layers,
            curves("layer", "contraction", ("layer", "contraction ratio"), 1.0),
        ),
        "alignment": (
            "Alignment: cosine of a layer's step with the way that is left to the last layer",
            layers,
            curves("layer", "alignment", ("layer", "alignment")),
        ),
        "latency": (
            "Time of one batch of sentences, by the way the model is run",
            plot_data.latency_rows(summary),
            plots.latency,
        ),
        "frontier": (
            "The frontier: quality (the mean of Spearman and nDCG@10) of queries that leave early (line), of "
            "models cut at a layer (dotted), of students of a fixed depth (diamonds), of the teacher (star)",
            plot_data.frontier_rows(summary),
            plots.frontier,
        ),
        "losses": (
            "Training loss",
            plot_data.loss_rows(summary, evaluations),
            curves("step", "loss", ("step", "loss")),
        ),
        "pareto": (
            "leap cut at each layer, exited by theta, and by the oracle (study strategies)",
            plot_data.pareto_rows(studies),
            curves("x", "y", by_depth),
        ),
        "fixed_depth": (
            "leap cut or exited, and students of exactly so many layers (study fixed_depth)",
            plot_data.fixed_depth_rows(studies),
            curves("x", "y", by_depth),
        ),
    }
    return {name: (caption, function(rows), rows) for name, (caption, rows, function) in draw.items() if rows}


def render_report(summary: dict[str, Any], drawn: Pictures, studies: Studies, asked: dict[str, str]) -> str:
    """Render reports/report.html.

    `asked` is the description of every study of the settings, run or not.
    """
    spread = {row["layer"] for row in drawn["exits"][2] if row["share"] > 0.01} if "exits" in drawn else set()
    first = [name if name != "exits" or len(spread) > 1 else "latency" for name in FIRST]
    parts = list(sections(summary, studies, asked))
    return render(
        "report.html.j2",
        summary=summary,
        finding=finding(summary),
        smaller=against_smaller(summary),
        steps=next_steps(summary),
        overview=overview(summary),
        first=[name for name in first if name in drawn],
        sections=parts,
        drawn={name: (caption, picture(svg)) for name, (caption, svg, _) in drawn.items()},
    )


def render_paper(summary: dict[str, Any], tables: dict[str, Table], rule: str) -> str:
    """Render reports/paper.html: the paper's tables with ours, on this machine; `rule` is the profile."""
    usual = tables["main_results"].apart if "main_results" in tables else []
    return render(
        "paper.html.j2",
        machine=machine(summary),
        profile=rule,
        usual=usual,
        tables={key: table for key, table in tables.items() if not table.missing},
        waiting=_waiting(tables),
    )


def _waiting(tables: dict[str, Table]) -> dict[str, list[str]]:
    """The titles of the tables of which nothing is measured, by the command that measures them."""
    waiting: dict[str, list[str]] = {}
    for table in tables.values():
        if table.missing:
            waiting.setdefault(table.command, []).append(table.title)
    return waiting


def render_markdown(summary: dict[str, Any]) -> str:
    """Render reports/report.md: the first screen, for a pull request."""
    steps = "".join(f"- {step}\n" for step in next_steps(summary))
    return (
        f"# LEAP report, profile {summary['profile']}\n\n{finding(summary)}\n\n"
        f"{overview(summary).markdown()}\n\n{against_smaller(summary) or ''}\n\n"
        f"## What to try next\n\n{steps or '- `dvc repro`'}\n\nEvery layer, check and picture: report.html.\n"
    )


def render(template: str, **content: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "signed": signed, "tone": tone, "code": with_code}
    return environment.get_template(template).render(**content)


def with_code(text: str) -> Markup:
    parts = [str(escape(part)) for part in text.split("`")]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return Markup("".join(parts))  # nosec B704  # every part is escaped


def picture(svg: str) -> Markup:
    return Markup(svg)  # nosec B704  # matplotlib escapes what a picture says
