"""The pictures as SVG text: readable in colour, in grey print, and on a light or a dark page.

Colours are Okabe and Ito's, which people with any kind of colour blindness can tell apart; every variant also
has its own marker and line. Text and axes are drawn in `currentColor`, so they take the page's colour.
"""

import io
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from leap.core.colours import COLOURS

Rows = list[dict[str, Any]]

MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "\\\\", "x")
# Stands for the page's text colour while matplotlib draws; no picture has it otherwise.
INK = "#010203"
# matplotlib's own type of its settings is a list of every key there is.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.5,
}


def by_layer(rows: Rows, key: str, label: str, threshold: float | None = None) -> str:
    """A curve a variant of one number of the layers; `threshold` draws what the gate or the paper demands."""
    figure, axes = _picture()
    for name, style in _styles(rows).items():
        points = [(r["layer"], r[key]) for r in rows if r["variant"] == name and r.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)
    if threshold is not None:
        axes.axhline(threshold, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    _layers(axes, (row["layer"] for row in rows))
    axes.set_ylabel(label)
    return _svg(figure, axes, f"layers-{key}")


def exit_distribution(rows: Rows) -> str:
    """Bars: the share of texts that leave at each layer (rule: converged)."""
    figure, axes = _picture()
    styles = _styles(rows)
    layers = sorted({row["layer"] for row in rows})
    width = 0.8 / max(len(styles), 1)
    for i, (name, style) in enumerate(styles.items()):
        share = {row["layer"]: row["share"] for row in rows if row["variant"] == name}
        places = [layer + (i - (len(styles) - 1) / 2) * width for layer in layers]
        heights = [share.get(layer, 0.0) for layer in layers]
        axes.bar(
            places,
            heights,
            width,
            label=name,
            color=style["color"],
            hatch=HATCHES[i % 4],
            edgecolor=INK,
            linewidth=0.4,
        )
    _layers(axes, layers)
    axes.set_ylabel("share of texts that leave here")
    return _svg(figure, axes, "exit-distribution")


def quality(rows: Rows) -> str:
    """Spearman against layers computed: cut at each layer (line), full depth (hollow), exited (filled)."""
    figure, axes = _picture()
    for name, style in _styles(rows).items():
        points = {
            path: [(r["layers"], r["spearman"]) for r in rows if r["variant"] == name and r["path"] == path]
            for path in ("truncated", "full", "exit")
        }
        if points["truncated"]:
            axes.plot(
                *zip(*points["truncated"], strict=True),
                **{**style, "marker": "", "linewidth": 1, "alpha": 0.7},
            )
        mark = {"color": style["color"], "marker": style["marker"], "linestyle": "", "markersize": 8}
        for x, y in points["full"]:
            axes.plot([x], [y], **mark, markerfacecolor="none")
        for x, y in points["exit"]:
            axes.plot([x], [y], **mark, label=name, markeredgecolor=INK, markeredgewidth=0.6)
    _layers(axes, (row["layers"] for row in rows))
    axes.set_xlabel("layers computed a text")
    axes.set_ylabel("Spearman")
    return _svg(figure, axes, "quality")


def curves(rows: Rows, labels: tuple[str, str], name: str, diagonal: bool = False) -> str:
    """A series a `variant` through its points (`x`, `y`); one point alone is a marker.

    Args:
        rows: the points.
        labels: of the two axes.
        name: makes the picture's inner names its own.
        diagonal: dots the line y = 1 / x, where every layer costs alike.
    """
    figure, axes = _picture()
    for series, style in _styles(rows).items():
        points = sorted((row["x"], row["y"]) for row in rows if row["variant"] == series)
        line = style if len(points) > 1 else {**style, "linestyle": "", "markersize": 7}
        axes.plot(*zip(*points, strict=True), label=series, **line)
    if diagonal and rows:
        most = max(row["x"] for row in rows)
        ideal = [1 + (most - 1) * step / 40 for step in range(41)]
        axes.plot(ideal, [1 / x for x in ideal], color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    return _svg(figure, axes, name)


def latency(rows: Rows, batch: int) -> str:
    """Bars: median time of each way to run each variant at one batch size."""
    figure, axes = _picture()
    rows = [row for row in rows if row["batch"] == batch and row.get("length", "sentences") == "sentences"]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    paths = list(dict.fromkeys(row["path"] for row in rows))
    width = 0.8 / max(len(paths), 1)
    for i, path in enumerate(paths):
        times = {row["variant"]: row["ms_p50"] for row in rows if row["path"] == path}
        places = [j + (i - (len(paths) - 1) / 2) * width for j, name in enumerate(variants) if name in times]
        heights = [times[name] for name in variants if name in times]
        axes.bar(
            places,
            heights,
            width,
            label=path,
            color=COLOURS[i % 6],
            hatch=HATCHES[i % 4],
            edgecolor=INK,
            linewidth=0.4,
        )
    axes.set_xticks(range(len(variants)), variants)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(f"ms, median, batch {batch}")
    return _svg(figure, axes, f"latency-{batch}")


def losses(rows: Rows) -> str:
    """The total loss of every training by step, on a logarithmic axis where it is positive."""
    figure, axes = _picture()
    styles = _styles(rows)
    named: set[str] = set()
    for name, seed in dict.fromkeys((row["variant"], row["seed"]) for row in rows):
        points = [(r["step"], r["loss"]) for r in rows if (r["variant"], r["seed"]) == (name, seed)]
        style = {**styles[name], "marker": "", "linewidth": 1.2}
        axes.plot(*zip(*points, strict=True), label=None if name in named else name, **style)
        named.add(name)
    if rows and all(row["loss"] > 0 for row in rows):
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(ScalarFormatter())
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    return _svg(figure, axes, "losses")


def _picture() -> tuple[Figure, Axes]:
    with mpl.rc_context(STYLE):
        # One small panel a picture: it stays readable at a phone's width, and pages set several side by side.
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        return figure, figure.add_subplot()


def _styles(rows: Rows) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(row["variant"] for row in rows)
    return {
        name: {"color": COLOURS[i % 6], "marker": MARKERS[i % 6], "linestyle": LINES[i % 4]}
        for i, name in enumerate(names)
    }


def _layers(axes: Axes, layers: Iterable[float]) -> None:
    deepest = max((int(layer) for layer in layers), default=1)
    axes.set_xlim(0.5, deepest + 0.5)
    axes.set_xticks(range(1, deepest + 1, 1 if deepest <= 12 else 2))
    axes.set_xlabel("layer")


def _svg(figure: Figure, axes: Axes, name: str) -> str:
    """The finished picture; the same rows always give the same bytes."""
    handles, labels = axes.get_legend_handles_labels()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        if labels:
            figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))
        else:
            axes.text(0.5, 0.5, "missing", transform=axes.transAxes, ha="center")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # An HTML page takes the picture without XML's opening lines.
    return text[text.index("<svg") :].replace(INK, "currentColor")
