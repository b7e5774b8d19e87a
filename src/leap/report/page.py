"""The report as one HTML file that needs nothing else, and as Markdown, from the summary and the pictures."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from leap.gate.verdict import mark
from leap.report import plot_data, plots
from leap.report.evaluator_proof import read_proof
from leap.report.paper_tables import Table
from leap.report.study_results import Studies
from leap.report.summary import COLUMNS, dig, row, shown, verdict_word
from leap.report.wall_clock import wall_clock

TEMPLATES = Path(__file__).parent / "templates"

# The gate's viability line for neighbours (paper, Deployment Checklist), drawn where layers are judged by it.
NEIGHBOURS = 0.8

LAYER_COLUMNS = {
    "layer": 0,
    "similarity_to_final": 3,
    "stability": 3,
    "exit_rate_converged": 3,
    "exit_rate_near_final": 3,
    "nn_at_10": 3,
    "nn_fail_50": 3,
    "nn_fail_30": 3,
    "contraction": 3,
    "alignment": 3,
    "viable": 0,
}


Pictures = dict[str, tuple[str, str, list[dict[str, Any]]]]


def pictures(summary: dict[str, Any], evaluations: Path, studies: Studies) -> Pictures:
    """Every picture by file name: (caption, SVG, the rows behind it)."""
    layers = plot_data.layer_rows(summary)
    exits = plot_data.exit_rows(summary)
    quality = plot_data.quality_rows(summary)
    latency = plot_data.latency_rows(summary)
    losses = plot_data.loss_rows(summary, evaluations)
    pareto, fixed = plot_data.pareto_rows(studies), plot_data.fixed_depth_rows(studies)
    widths, reduction = plot_data.width_rows(studies), plot_data.reduction_rows(summary)
    layers_and_quality = ("layers computed a text", "Spearman")
    drawn = {
        "similarity": (
            "Similarity of each layer to the final one",
            plots.by_layer(layers, "similarity_to_final", "cosine to the final layer"),
            layers,
        ),
        "stability": (
            "Stability: each layer against the one before",
            plots.by_layer(layers, "stability", "cosine to the layer before"),
            layers,
        ),
        "neighbours": (
            f"Neighbours kept (NN@10) at each layer; the line is the gate's {NEIGHBOURS:g}",
            plots.by_layer(layers, "nn_at_10", "NN@10", NEIGHBOURS),
            layers,
        ),
        "exits": ("Where texts leave (rule: converged)", plots.exit_distribution(exits), exits),
        "quality": (
            "Quality against depth: cut at each layer (line), full (hollow), exited (filled)",
            plots.quality(quality),
            quality,
        ),
        "failure": (
            "Neighbours lost: share of texts that keep less than half of their ten (NN@10 below 0.5)",
            plots.by_layer(layers, "nn_fail_50", "share of texts"),
            layers,
        ),
        "contraction": (
            "Contraction: a layer's step over the one before, median; below 1 layers move less and less",
            plots.by_layer(layers, "contraction", "contraction ratio", 1.0),
            layers,
        ),
        "pareto": (
            "Quality against layers: one model cut at each layer, exited by theta, and by the oracle "
            "(study strategies)",
            plots.curves(pareto, layers_and_quality, "pareto"),
            pareto,
        ),
        "fixed_depth": (
            "Rivals at equal depth: LEAP cut or exited beside students of exactly so many layers "
            "(study fixed_depth)",
            plots.curves(fixed, layers_and_quality, "fixed-depth"),
            fixed,
        ),
        "widths": (
            "Fewer layers and fewer dimensions: quality against layers times width saved (study widths)",
            plots.curves(widths, ("layers times width saved, x", "Spearman"), "widths"),
            widths,
        ),
        "reduction": (
            "Time that is left of full depth against layer reduction, smallest batch; dotted: every layer "
            "costs alike",
            plots.curves(
                reduction, ("layer reduction, x", "share of full depth's time"), "reduction", diagonal=True
            ),
            reduction,
        ),
        "losses": ("Training loss", plots.losses(losses), losses),
    }
    for batch in sorted({item["batch"] for item in latency}):
        caption = f"Time a batch of {batch}, by the way the model is run"
        drawn[f"latency_{batch}"] = (caption, plots.latency(latency, batch), latency)
    return drawn


def render(
    template: str,
    summary: dict[str, Any],
    drawn: Pictures,
    tables: dict[str, Table],
    asked: dict[str, str],
    studies: Studies,
) -> str:
    """One of the two forms of the report.

    Args:
        template: "report.html.j2" or "report.md.j2".
        summary: the content of reports/summary.json.
        drawn: the result of `pictures`.
        tables: the result of `leap.report.paper_tables.paper_tables`.
        asked: the description of every study of the settings, run or not.
        studies: those that have been run.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"shown": shown, "cell": cell, "signed": signed}
    environment.globals |= {"dig": dig, "mark": mark, "verdict_word": verdict_word}
    environment.globals["wall_clock"] = wall_clock
    return environment.get_template(template).render(
        summary=summary,
        proof=read_proof(),
        columns=COLUMNS,
        rows=[row(name, variant) for name, variant in summary["variants"].items()],
        layer_columns=LAYER_COLUMNS,
        pictures={name: (caption, _as_it_is(svg)) for name, (caption, svg, _) in drawn.items()},
        tables=tables,
        asked=asked,
        studies=studies,
    )


def _as_it_is(svg: str) -> Markup:
    return Markup(svg)  # nosec B704  # matplotlib escapes what a picture says


def cell(value: Any, name: str) -> str:
    """A number of a layer table; what a layer cannot have (the first layer's stability) is a dash."""
    return "-" if value is None else shown(value, LAYER_COLUMNS[name])


def signed(value: float | None, digits: int | None) -> str:
    """A difference with its sign; a dash where one of its two figures is missing."""
    if value is None:
        return "-"
    return f"{value:+.8g}" if digits is None else f"{value:+.{digits}f}"
