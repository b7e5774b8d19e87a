"""The numbers behind the pictures, as rows: what DVC plots and what `leap.report.plots` draws."""

import json
from pathlib import Path
from typing import Any

from leap.report.study_results import Studies, first_seed
from leap.report.summary import dig
from leap.report.wall_clock import sentence_rows

Rows = list[dict[str, Any]]


def layer_rows(summary: dict[str, Any]) -> Rows:
    """Return a row a variant and layer: similarity, stability, exit rates, neighbours, quality at that depth."""
    rows = []
    for name, variant in summary["variants"].items():
        quality = dig(variant, "sts", "spearman_by_layer") or []
        for layer in variant["layers"] or []:
            spearman = quality[layer["layer"] - 1] if layer["layer"] <= len(quality) else None
            rows.append({"variant": name, **layer, "spearman": spearman})
    return rows


def exit_rows(summary: dict[str, Any]) -> Rows:
    """Return a row a variant and layer where sentences leave: their share; of variants that exit, if any does."""
    variants = summary["variants"]
    leaving = [name for name, variant in variants.items() if dig(variant, "exit", "rate")]
    rows = []
    for name in leaving or variants:
        counts = dig(variants[name], "exit", "layers") or {}
        total = sum(counts.values())
        rows += [{"variant": name, "layer": int(layer), "share": count / total} for layer, count in counts.items()]
    return rows


def quality_rows(summary: dict[str, Any]) -> Rows:
    """Return a row a variant and way to use it: Spearman of the primary set against layers computed."""
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
        rows += [
            {"variant": name, "path": "tried", "layers": point["expected_layers"], "spearman": point["spearman"]}
            for point in variant.get("sweep") or []
            if point["efficient"]
        ]
    return rows


def pareto_rows(studies: Studies) -> Rows:
    """Quality against layers of the pipeline's own leap: cut, exited and by the oracle, a point a layer or theta.

    Of the study of strategies, which takes the main student over; never of a reduced training.
    """
    figures = first_seed(studies, "strategies", "leap")
    if figures is None:
        return []
    cut = [{"variant": "cut at a layer", "x": row["layer"], "y": row["spearman"]} for row in figures["layers"]]
    swept = [
        {"variant": row["strategy"], "x": row["expected_layers"], "y": row["spearman"]}
        for row in (*figures.get("thresholds", []), *figures.get("patiences", []))
    ]
    return cut + swept


def fixed_depth_rows(studies: Studies) -> Rows:
    """Return LEAP cut at each layer and exited, and students of exactly so many layers, of the study's size."""
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


def latency_rows(summary: dict[str, Any]) -> Rows:
    """Return whole sentences at the smallest batch, a row a variant and path; `floor_ms` reads weights once."""
    rows: Rows = []
    for name, variant in summary["variants"].items():
        floor = dig(variant, "floor", "ms")
        rows += [{"variant": name, **row, "floor_ms": floor} for row in sentence_rows(variant["latency"])]
    return rows


def frontier_rows(summary: dict[str, Any]) -> Rows:
    """Return the frontier's points (`leap.evidence.frontier`): variant, kind, layers, ms_p50, measure and y.

    Kinds: `exits`, queries that leave at each layer and search documents of full depth; `truncated`, a model cut
    at each layer without having been trained for it, which are the baseline and a ready checkpoint that never
    exits; `student`, a model trained for its own depth alone; `teacher`. The measure is `quality`, or `spearman`
    where there is no collection: then both sides leave.
    """
    points = summary["frontier"]
    measure = "quality" if any(row["quality"] is not None for row in points) else "spearman"
    early = "query_exit" if any(row["way"] == "query_exit" for row in points) else "both_exit"
    ways = {"exits": (early, "full"), "truncated": ("both_exit", "full"), "student": ("full",)}
    rows = []
    for row in points:
        kind = "teacher" if row["way"] == "teacher" else _kind(summary["variants"][row["variant"]])
        if row[measure] is not None and row["way"] in ways.get(kind, ("teacher",)):
            shared = {key: row[key] for key in ("variant", "layers", "ms_p50")}
            rows.append({**shared, "kind": kind, "measure": measure, "y": row[measure]})
    return rows


def _kind(variant: dict[str, Any]) -> str:
    if dig(variant, "exit", "rate") or variant["query_layer"] is not None:
        return "truncated" if variant["role"] == "baseline" else "exits"
    return "student" if dig(variant, "training", "steps") else "truncated"  # 0 steps: a ready checkpoint


def loss_rows(summary: dict[str, Any], evaluations: Path) -> Rows:
    """Return a row a variant, seed and logged step: the total loss of the training."""
    rows = []
    for name, variant in summary["variants"].items():
        for seed in variant["seeds"]:
            history = evaluations / f"{name}-{seed}" / "training" / "history.jsonl"
            if not history.is_file():
                continue
            lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
            rows += [{"variant": name, "seed": seed, "step": line["step"], "loss": line["loss"]} for line in lines]
    return rows
