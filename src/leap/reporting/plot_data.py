"""The numbers behind the pictures, as rows: what DVC plots and what `leap.reporting.plots` draws."""

from pathlib import Path
from typing import Any

from leap.reporting.summary import dig
from leap.tracking.content import history_numbers

Rows = list[dict[str, Any]]


def layer_rows(summary: dict[str, Any]) -> Rows:
    """A row a variant and layer: similarity, stability, exit rates, neighbours, quality at that depth."""
    rows = []
    for name, variant in summary["variants"].items():
        quality = dig(variant, "sts", "spearman_by_layer") or []
        for layer in variant["layers"] or []:
            spearman = quality[layer["layer"] - 1] if layer["layer"] <= len(quality) else None
            rows.append({"variant": name, **layer, "spearman": spearman})
    return rows


def exit_rows(summary: dict[str, Any]) -> Rows:
    """A row a variant and layer where texts leave: their share."""
    rows = []
    for name, variant in summary["variants"].items():
        counts = dig(variant, "exit", "layers") or {}
        total = sum(counts.values())
        rows += [
            {"variant": name, "layer": int(layer), "share": count / total} for layer, count in counts.items()
        ]
    return rows


def quality_rows(summary: dict[str, Any]) -> Rows:
    """A row a variant and way to use it: Spearman of the primary set against layers computed."""
    rows = []
    for name, variant in summary["variants"].items():
        pairs = variant["sts"]
        curve = pairs.get("spearman_by_layer") or []
        rows += [
            {"variant": name, "path": "truncated", "layers": layer, "spearman": value}
            for layer, value in enumerate(curve, 1)
        ]
        ends = [
            ("full", variant["depth"], pairs.get("spearman_full")),
            ("exit", pairs.get("expected_layers"), pairs.get("spearman_exit")),
        ]
        rows += [
            {"variant": name, "path": path, "layers": layers, "spearman": value}
            for path, layers, value in ends
            if layers is not None and value is not None
        ]
    return rows


def latency_rows(summary: dict[str, Any]) -> Rows:
    """The rows of all latency evidence with their variant."""
    return [
        {"variant": name, **row}
        for name, variant in summary["variants"].items()
        for row in variant["latency"] or []
    ]


def loss_rows(summary: dict[str, Any], evaluations: Path) -> Rows:
    """A row a variant, seed and logged step: the total loss of the training."""
    rows = []
    for name, variant in summary["variants"].items():
        for seed in variant["seeds"]:
            history = evaluations / f"{name}-{seed}" / "training" / "history.jsonl"
            if not history.is_file():
                continue
            rows += [
                {"variant": name, "seed": seed, "step": step, "loss": value}
                for metric, value, step in history_numbers(history)
                if metric == "loss/total"
            ]
    return rows
