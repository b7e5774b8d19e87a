"""A comparison in Prometheus' text format (version 0.0.4), for the textfile collector of node_exporter.

All are gauges: a window's counts begin again with the next window.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from leap.serve.compare_windows import Comparison
from leap.serve.window import Mean, Window

Sample = tuple[dict[str, str], float | None]


def prometheus_text(comparison: Comparison) -> str:
    """Return the current window and the alerts; what is unknown is left out."""
    model = {"checkpoint": str(comparison.current.model["checkpoint"])[:12]}
    registry = CollectorRegistry()
    for name, meaning, samples in _families(comparison):
        known = [(model | labels, value) for labels, value in samples if value is not None]
        if known:
            gauge = Gauge(f"leap_{name}", meaning, list(known[0][0]), registry=registry)
            for labels, value in known:
                gauge.labels(**labels).set(value)
    return generate_latest(registry).decode()


def _families(comparison: Comparison) -> Iterator[tuple[str, str, list[Sample]]]:
    window = comparison.current
    yield "window_exits", "Sentences that left at this layer.", _by_layer(window.exits)
    yield "window_bypassed", "Sentences encoded without an exit rule.", [({}, window.bypassed)]
    yield "window_not_finite", "Similarities that were not numbers.", [({}, window.not_finite)]
    yield "window_mean_exit_layer", "Mean exit layer.", [({}, window.mean_layer)]
    yield "window_exit_rate", "Share that left before the last layer.", [({}, window.exit_rate)]
    yield "window_layer_reduction", "Depth over mean exit layer.", _reductions(window)
    yield (
        "window_consecutive_similarity",
        "Mean cosine to the layer before, of the sentences still there.",
        _means(window.similarity),
    )
    yield (
        "window_similarity_to_final",
        "Mean cosine to the last layer, of the shadowed sentences.",
        _means(window.to_final),
    )
    yield "window_exit_similarity", "Mean cosine of exited and full.", [({}, window.shadowed.mean)]
    yield "window_nn_at_10", "NN@10 of exited against full, blocks of 128.", [({}, window.agreement.mean)]
    yield "window_nn_fail_50", "Share with NN@10 below 0.5.", [({}, window.agreement.failed)]
    yield (
        "window_score_shift",
        "Population stability index of the scores against the calibration's.",
        [({}, window.score_shift)],
    )
    yield "window_shadowed", "Sentences also computed to full depth.", [({}, window.shadowed.n)]
    yield "window_end_timestamp_seconds", "When the window ended.", [({}, window.ended.timestamp())]
    yield (
        "monitor_alert",
        "1 where the rule alerts; absent where it could not be judged.",
        [
            ({"rule": finding.rule}, float(finding.outcome == "alert"))
            for finding in comparison.findings
            if finding.outcome != "not judged"
        ],
    )


def _by_layer(values: tuple[int, ...]) -> list[Sample]:
    return [({"layer": str(layer)}, value) for layer, value in enumerate(values, 1)]


def _means(means: tuple[Mean, ...]) -> list[Sample]:
    return [({"layer": str(layer)}, each.mean) for layer, each in enumerate(means, 1)]


def _reductions(window: Window) -> list[Sample]:
    return [
        ({"kind": "actual"}, window.layer_reduction),
        ({"kind": "predicted"}, window.predicted_layer_reduction),
    ]
