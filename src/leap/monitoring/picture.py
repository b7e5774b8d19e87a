"""The picture of a comparison: where sentences leave, and how near each layer is to the last one."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leap.files import whole_file
from leap.monitoring.compare import Comparison
from leap.monitoring.window import Window, stamp
from leap.reporting.colours import COLOURS
from leap.reporting.plots import HATCHES, INK, LINES, MARKERS, STYLE


def draw(comparison: Comparison, target: Path) -> None:
    """Writes the picture, whole or not at all, as its ending says (svg, png or pdf)."""
    windows = {"reference": comparison.reference, "current": comparison.current}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for place, (name, window) in enumerate(windows.items()):
            _exits(left, place, name, window)
            _similarity(right, place, name, window)
        _finish(left, comparison.current.depth, "share of sentences that leave here")
        _finish(right, comparison.current.depth, "cosine to the last layer (shadow)")
        figure.suptitle(_title(comparison), fontsize=9)
        with whole_file(target) as beside:
            figure.savefig(beside, format=target.suffix[1:], dpi=130, facecolor="white")


def _exits(axes: Axes, place: int, name: str, window: Window) -> None:
    layers = [layer + (place - 0.5) * 0.4 for layer in range(1, window.depth + 1)]
    shares = [count / max(window.sentences, 1) for count in window.exits]
    axes.bar(
        layers,
        shares,
        0.4,
        label=f"{name}, {window.sentences:,} sentences",
        color=COLOURS[place],
        hatch=HATCHES[place],
        edgecolor=INK,
        linewidth=0.4,
    )
    if window.mean_layer is not None:
        axes.axvline(window.mean_layer, color=COLOURS[place], linestyle=LINES[place + 1], linewidth=1.2)


def _similarity(axes: Axes, place: int, name: str, window: Window) -> None:
    points = [(layer, each.mean) for layer, each in enumerate(window.to_final, 1) if each.mean is not None]
    nn = f", NN@10 {window.agreement.mean:.3f}" if window.agreement.mean is not None else ""
    axes.plot(
        [layer for layer, _ in points],
        [mean for _, mean in points],
        label=f"{name}, {window.shadowed.n:,} shadowed{nn}",
        color=COLOURS[place],
        marker=MARKERS[place],
        linestyle=LINES[place],
    )


def _finish(axes: Axes, depth: int, label: str) -> None:
    axes.set_xlim(0.5, depth + 0.5)
    axes.set_xticks(range(1, depth + 1, 1 if depth <= 12 else 2))
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    axes.legend(loc="upper left", fontsize=7)
    low, high = axes.get_ylim()
    # Room for the legend above the data.
    axes.set_ylim(low, high + 0.25 * (high - low))


def _title(comparison: Comparison) -> str:
    current = comparison.current
    said = ", ".join(comparison.alerts) or "none"
    return f"{stamp(current.started)} to {stamp(current.ended)}    alerts: {said}"
