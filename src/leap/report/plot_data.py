"""The numbers behind the pictures, as rows: what DVC plots and what `leap.report.plots` draws."""

import json
from pathlib import Path
from typing import Any

from leap.report.study_results import Studies, first_seed
from leap.report.summary import dig
from leap.report.wall_clock import sentence_rows

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
        rows += [{"variant": name, "layer": int(layer), "share": count / total} for layer, count in counts.items()]
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


def pareto_rows(studies: Studies) -> Rows:
    """Quality against layers computed of one model: cut, exited and by the oracle, a point a layer or theta.

    From the study of strategies; where it is missing, of thresholds.
    """
    for study, variant in (("strategies", "leap"), ("thresholds", "tau_098")):
        figures = first_seed(studies, study, variant)
        if figures is not None:
            cut = [
                {"variant": "cut at a layer", "x": row["layer"], "y": row["spearman"]} for row in figures["layers"]
            ]
            swept = [
                {"variant": row["strategy"], "x": row["expected_layers"], "y": row["spearman"]}
                for row in (*figures.get("thresholds", []), *figures.get("patiences", []))
            ]
            return cut + swept
    return []


def fixed_depth_rows(studies: Studies) -> Rows:
    """LEAP cut at each layer and exited, beside students of exactly so many layers, of the study's size."""
    rows: Rows = []
    for name in studies.get("fixed_depth", {}).get("variants", {}):
        figures = first_seed(studies, "fixed_depth", name) or {}
        if name == "leap":
            rows += [
                {"variant": "leap, cut", "x": row["layer"], "y": row["spearman"]} for row in figures["layers"]
            ]
            rows.append(
                {"variant": "leap, exited", "x": figures["expected_layers"], "y": figures["spearman_exit"]}
            )
        else:
            rows.append({"variant": "fixed depth", "x": figures["depth"], "y": figures["spearman_full"]})
    return rows


def width_rows(studies: Studies) -> Rows:
    """Quality against all that is saved, layers times width, of the study of widths."""
    figures = first_seed(studies, "widths", "leap") or {}
    names = {"full": "full depth", "exit": "exited"}
    return [
        {"variant": names[row["path"]], "x": row["reduction"], "y": row["spearman"]}
        for row in figures.get("widths", [])
    ]


def reduction_rows(summary: dict[str, Any]) -> Rows:
    """The share of full depth's time that is left, against layer reduction, at the smallest batch.

    Rows of whole sentences only. The physical floor (reading the weights once at the measured bandwidth) is a
    series of its own.
    """
    rows: Rows = []
    for name, variant in summary["variants"].items():
        timed = sentence_rows(variant["latency"])
        smallest = min((row["batch"] for row in timed), default=None)
        for row in timed:
            if row["batch"] == smallest and row["path"] in ("full", "exit"):
                reduction = variant["depth"] / row["expected_layers"]
                rows.append({"variant": name, "x": reduction, "y": 1 / row["speed_up"]})
        floor = dig(variant, "floor", "ms")
        full = next((r["ms_p50"] for r in timed if (r["batch"], r["path"]) == (smallest, "full")), None)
        if floor and full:
            most = max(row["x"] for row in rows if row["variant"] == name)
            rows += [{"variant": f"{name}, floor", "x": x, "y": floor / full / x} for x in (1.0, most)]
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
            lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
            rows += [{"variant": name, "seed": seed, "step": line["step"], "loss": line["loss"]} for line in lines]
    return rows
