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

from leap.core.colours import COLOURS, colours_of

Rows = list[dict[str, Any]]

MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "\\\\", "x")
FLOOR = "memory's floor"
# Stands for the page's text colour while matplotlib draws; no picture has it otherwise.
INK = "#010203"
# matplotlib's own type of its settings is a list of every key there is.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
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
    "legend.fontsize": 9,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.5,
}


def curves(rows: Rows, x: str, y: str, labels: tuple[str, str], line: float | None = None) -> str:
    """Draw a curve a variant, and seed, through its points; one point alone is a marker.

    Args:
        rows: the points; null is left out.
        x: their key, "layer" for whole numbers from 1.
        y: their other key.
        labels: of the two axes.
        line: dots what the gate or the paper demands.
    """
    figure, axes = _picture()
    for name, style in _styles(rows).items():
        own = [row for row in rows if row["variant"] == name and row.get(y) is not None]
        for number, seed in enumerate(dict.fromkeys(row.get("seed") for row in own)):
            points = sorted((row[x], row[y]) for row in own if row.get("seed") == seed)
            shape = {"linestyle": "", "markersize": 7} if len(points) == 1 else {}
            axes.plot(*zip(*points, strict=True), label="" if number else name, **{**style, **shape})
    if line is not None:
        axes.axhline(line, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    if x == "layer":
        _layers(axes, (row["layer"] for row in rows))
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    return _svg(figure, axes, f"{x}-{y}-{labels[1]}")


def exit_distribution(rows: Rows) -> str:
    """Draw bars: the share of sentences that leave at each layer."""
    figure, axes = _picture()
    styles = _styles(rows)
    layers = sorted({row["layer"] for row in rows})
    at = {(row["variant"], row["layer"]): row["share"] for row in rows}
    shares = {name: [at.get((name, layer), 0.0) for layer in layers] for name in styles}
    _bars(axes, layers, shares, {name: style["color"] for name, style in styles.items()})
    _layers(axes, layers)
    axes.set_ylabel("share of sentences")
    return _svg(figure, axes, "exit-distribution")


def quality(rows: Rows) -> str:
    """Draw Spearman against layers: cut at a layer (line), other rules (dots), full (hollow), exited (filled)."""
    figure, axes = _picture()
    for name, style in _styles(rows).items():
        points = {
            path: [(r["layers"], r["spearman"]) for r in rows if r["variant"] == name and r["path"] == path]
            for path in ("truncated", "full", "exit", "tried")
        }
        if points["truncated"]:
            line = {**style, "marker": "", "linewidth": 1, "alpha": 0.7}
            axes.plot(*zip(*points["truncated"], strict=True), **line)
        mark = {"color": style["color"], "marker": style["marker"], "linestyle": "", "markersize": 8}
        for x, y in points["tried"]:
            axes.plot([x], [y], **{**mark, "markersize": 3, "alpha": 0.5})
        for x, y in points["full"]:
            axes.plot([x], [y], **mark, markerfacecolor="none")
        for x, y in points["exit"]:
            axes.plot([x], [y], **mark, label=name, markeredgecolor=INK, markeredgewidth=0.6)
    _layers(axes, (row["layers"] for row in rows))
    axes.set_xlabel("layers computed by a sentence")
    axes.set_ylabel("Spearman")
    return _svg(figure, axes, "quality")


def frontier(rows: Rows) -> str:
    """Draw quality against layers (above) and milliseconds at batch 1 (below), one look a kind of way to leave.

    What lies 15 % below the weakest variant's best is not in the picture: it would flatten all other differences.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 5.6), layout="constrained")
        by_layers, by_time = figure.subplots(2, 1)
    best = {name: max(row["y"] for row in rows if row["variant"] == name) for name in _styles(rows)}
    for axes, x in ((by_layers, "layers"), (by_time, "ms_p50")):
        own = [row for row in rows if row[x] is not None]
        for name, style in _styles(rows).items():
            for kind in ("exits", "truncated"):
                points = sorted((row[x], row["y"]) for row in own if (row["variant"], row["kind"]) == (name, kind))
                look = {**style, "linestyle": ":", "marker": ""} if kind == "truncated" else style
                label = f"{name}, cut" if kind == "truncated" else name
                if points:
                    axes.plot(*zip(*points, strict=True), **look, label=label)
        for kind, label, marker in (("student", "fixed depth", "D"), ("teacher", "teacher", "*")):
            points = [(row[x], row["y"]) for row in own if row["kind"] == kind]
            if points:
                look = {"linestyle": "", "marker": marker, "color": INK, "markersize": 5 if marker == "D" else 9}
                axes.plot(*zip(*points, strict=True), **look, label=label, markerfacecolor="none")
    _layers(by_layers, (row["layers"] for row in rows))
    by_layers.set_xlabel("layers of the query")
    by_time.set_xlabel("ms a query, median, batch 1")
    for axes in (by_layers, by_time):
        axes.set_ylim(bottom=max(min(row["y"] for row in rows), 0.85 * min(best.values())) - 0.01)
        axes.set_ylabel(rows[0]["measure"])
    return _svg(figure, by_layers, "frontier")


def latency(rows: Rows) -> str:
    """Draw bars: median time of each way to run each variant; dotted: reading its weights once from memory."""
    figure, axes = _picture()
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    times = {(row["variant"], row["path"]): row["ms_p50"] for row in rows}
    paths = list(dict.fromkeys(row["path"] for row in rows))
    heights = {path: [times.get((name, path), 0.0) for name in variants] for path in paths}
    _bars(axes, list(range(len(variants))), heights, dict(zip(paths, COLOURS * 2, strict=False)))
    for place, name in enumerate(variants):
        floor = next(row["floor_ms"] for row in rows if row["variant"] == name)
        if floor is not None:
            ends, dots = (place - 0.45, place + 0.45), (0, (1, 2))
            axes.plot(ends, (floor, floor), color=INK, linestyle=dots, label="" if place else FLOOR)
    axes.set_xticks(range(len(variants)), variants)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(f"ms, median, batch {rows[0]['batch']}")
    return _svg(figure, axes, "latency")


def _bars(axes: Axes, places: list[int], heights: dict[str, list[float]], colours: dict[str, str]) -> None:
    width = 0.8 / max(len(heights), 1)
    for i, (name, values) in enumerate(heights.items()):
        shifted = [place + (i - (len(heights) - 1) / 2) * width for place in places]
        style: dict[str, Any] = {"color": colours[name], "hatch": HATCHES[i % 4], "edgecolor": INK}
        axes.bar(shifted, values, width, label=name, linewidth=0.4, **style)


def _picture() -> tuple[Figure, Axes]:
    with mpl.rc_context(STYLE):
        # One small panel a picture: it stays readable at a phone's width, and pages set several side by side.
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        return figure, figure.add_subplot()


def _styles(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return a look a variant; where there are more than colours, those that share one differ in the rest."""
    looks: dict[str, dict[str, Any]] = {}
    for name, colour in colours_of(row["variant"] for row in rows).items():
        place = COLOURS.index(colour) + sum(look["color"] == colour for look in looks.values())
        looks[name] = {
            "color": colour, "marker": MARKERS[place % len(MARKERS)], "linestyle": LINES[place % len(LINES)]
        }  # fmt: skip
    return looks


def _layers(axes: Axes, layers: Iterable[float]) -> None:
    deepest = max((int(layer) for layer in layers), default=1)
    axes.set_xlim(0.5, deepest + 0.5)
    axes.set_xticks(range(1, deepest + 1, 1 if deepest <= 12 else 2))
    axes.set_xlabel("layer")


def _svg(figure: Figure, axes: Axes, name: str) -> str:
    """The finished picture; the same rows always give the same bytes."""
    handles, labels = axes.get_legend_handles_labels()
    if FLOOR in labels:  # matplotlib names lines before bars
        handles, labels = [*handles[1:], handles[0]], [*labels[1:], labels[0]]
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if len(labels) < 5 else 3)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # An HTML page takes the picture without XML's opening lines.
    return text[text.index("<svg") :].replace(INK, "currentColor")
