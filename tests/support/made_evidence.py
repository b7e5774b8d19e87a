"""A project folder with checkpoints and evidence as the stages write them, values chosen by a test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from leap.core.settings import Settings, parse_settings
from leap.evidence.evidence_file import head, measured_settings
from leap.evidence.evidence_file import write_evidence as write_with_checksum
from leap.evidence.score_table import write_scores
from leap.models.packed_encoder import EncoderConfig

DEPTH = 4
EMBEDDED = Path(__file__).parents[2] / "profiles" / "embedded.yaml"
SHAPE = EncoderConfig(layers=DEPTH, width=32, heads=2, intermediate=64, vocabulary=100, positions=16)


def made_settings(**blocks: Any) -> Settings:
    """The embedded profile with a student of fixed depth, two retrieval sets, and changes to whole blocks."""
    content = YAML(typ="safe").load(EMBEDDED.read_text())
    content["variants"]["fixed_depth"] = {"description": "six layers", "student": {"layers": 6}}
    content["gate"]["fixed_depth"] = "fixed_depth"
    content["variants"]["elastic"]["exit"] = {}  # made evidence has four layers
    content["retrieval"]["second"] = dict(content["retrieval"]["docstrings"])
    for name, change in blocks.items():
        content[name] = {**content[name], **change} if isinstance(change, dict) else change
    return parse_settings(content, "test")


def write_checkpoint(folder: Path, weights: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps(SHAPE.hugging_face()))


def write_evidence(
    project: Path,
    settings: Settings,
    variant: str,
    seed: int = 1,
    weights: bytes | None = None,
    **changes: Any,
) -> None:
    """Writes checkpoint, evidence and history; `changes` are laid over diagnose, sts, retrieval, latency."""
    checkpoint = project / "models" / f"{variant}-{seed}"
    if not (checkpoint / "model.safetensors").exists() or weights:
        write_checkpoint(checkpoint, weights or f"{variant}-{seed}".encode())
    folder = project / "evaluations" / f"{variant}-{seed}"
    data = project / "data" / "pairs.csv"
    data.parent.mkdir(exist_ok=True)
    data.write_text("a,b,1\n")

    shared = head("diagnose", settings, variant, seed, checkpoint, [data], "cpu")

    def write(name: str, kind: str, body: dict[str, Any], change: dict[str, Any]) -> None:
        path = folder / f"{name}.json"
        asked = measured_settings(kind, settings, name.partition("/")[2] or None)
        opening = {**shared, "kind": kind, "settings": asked}
        write_with_checksum(path, {**opening, **body, **change})

    write_tables(folder, settings, variant)
    write("diagnose", "diagnose", diagnose(), changes.get("diagnose", {}))
    for name in settings.similarity:
        write(f"sts/{name}", "sts", pairs(), changes.get("sts", {}))
    for name in settings.retrieval:
        write(f"retrieval/{name}", "retrieval", collection(), changes.get("retrieval", {}))
    write("latency", "latency", latency(), changes.get("latency", {}))
    write_history(folder / "training")


def write_tables(folder: Path, settings: Settings, variant: str, rows: int = 40) -> None:
    """The tables next to the evidence: the same rows for every variant, other scores."""
    scores, own = np.linspace(0, 5, rows), np.sin(np.arange(rows) + len(variant))
    columns: dict[str, dict[str, Any]] = {
        "sts": {"score": scores, "cosine_full": scores + own, "cosine_exit": scores + 1.1 * own},
        "retrieval": {
            "query": [f"q{row}" for row in range(rows)],
            "ndcg_at_10_full": own,
            "ndcg_at_10_exit": own,
        },
        "diagnose": {"sentence": [f"sentence {row}" for row in range(rows)]},
    }
    for figure in ("teacher_nn_at_10", "teacher_similarity"):
        columns["diagnose"] |= {f"{figure}_full": own, f"{figure}_exit": own}
    write_scores(folder / "diagnose.parquet", columns["diagnose"])
    for kind, names in (("sts", settings.similarity), ("retrieval", settings.retrieval)):
        for name in names:
            write_scores(folder / kind / f"{name}.parquet", columns[kind])


def write_history(folder: Path, steps: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        {"step": 20 * i, "epoch": i / 10, "learning_rate": 1e-3, "loss": 3.0 / i, "loss_final": 1.0 / i}
        for i in range(1, steps + 1)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def diagnose() -> dict[str, Any]:
    similarity = [0.4, 0.7, 0.96, 1.0]
    layers = [
        {
            "layer": layer,
            "similarity_to_final": similarity[layer - 1],
            "stability": None if layer == 1 else 0.5 + 0.12 * layer,
            "exit_rate_converged": [0.0, 0.0, 0.9, 1.0][layer - 1],
            "exit_rate_near_final": [0.0, 0.1, 0.8, 1.0][layer - 1],
            "exit_share_converged": [0.0, 0.0, 0.9, 0.1][layer - 1],
            "exit_share_near_final": [0.0, 0.1, 0.7, 0.2][layer - 1],
            "gradient": None if layer == 1 else similarity[layer - 1] - similarity[layer - 2],
            "nn_at_10": [0.3, 0.6, 0.85, 1.0][layer - 1],
            "nn_fail_50": [0.8, 0.3, 0.02, 0.0][layer - 1],
            "nn_fail_30": [0.6, 0.1, 0.0, 0.0][layer - 1],
            "contraction": None if layer in (1, DEPTH) else 0.7,
            "alignment": None if layer == 1 else 0.2,
            "viable": layer >= 3,
        }
        for layer in range(1, DEPTH + 1)
    ]
    return {
        "n": 500,
        "set": "software",
        "depth": DEPTH,
        "layers": layers,
        "exit": {
            "rate": 0.9,
            "expected_layers": 3.1,
            "layer_reduction": 4 / 3.1,
            "layers": {"3": 450, "4": 50},
            "similarity": 0.965,
            "similarity_ci95": [0.96, 0.97],
            "similarity_p05": 0.93,
            "nn_at_10": 0.86,
            "nn_at_10_ci95": [0.84, 0.88],
            "nn_fail_50": 0.02,
            "nn_fail_30": 0.0,
        },
        "oracle": {"rate": 0.8, "expected_layers": 3.2},
        "truncation": {"similarity": 0.964, "nn_at_10": 0.865},
        "adaptive": {
            **gains("similarity", 0.001, 0.004),
            **gains("nn_at_10", -0.005, 0.01),
            "ceiling_expected_layers": 3.09,
            "ceiling_threshold": 0.955,
        },
        "by_length": [
            {
                "tokens": tokens,
                "n": 250,
                "rate": 0.9,
                "expected_layers": 3.1,
                "similarity": 0.965,
                "nn_at_10": 0.86,
                **gains("similarity", 0.001, 0.004),
                **gains("nn_at_10", -0.005, 0.01),
            }
            for tokens in ([1, 8], [9, 16])
        ],
        "strategies": [
            {"strategy": name, "deployable": name != "near_final", **point(layers), **GAINED}
            for name, layers in (
                ("converged", 3.1),
                ("patience_2", 3.4),
                ("near_final", 3.2),
            )
        ],
        "sweep": [SWEPT],
        "recommended": SWEPT,
        "teacher": {
            "nn_at_10_full": 0.55,
            "similarity_full": 0.7,
            "nn_at_10_exit": 0.5,
            "similarity_exit": 0.66,
        },
        "start": None,
        "contraction_median": 0.7,
        "monotonic": True,
        "verdict": "exits and is near",
    }


def point(layers: float) -> dict[str, Any]:
    return {
        "rate": 0.9,
        "expected_layers": layers,
        "layer_reduction": 4 / layers,
        "similarity": 0.965,
        "nn_at_10": 0.86,
        "spearman": 0.79,
        "quality": 0.79 / 0.80,
    }


SWEPT = {
    "threshold": 0.95,
    "min_layer": 3,
    "patience": 1,
    **point(3.1),
    "passes": True,
    "efficient": True,
}


GAINED = {"spearman_gain": 0.001, "similarity_gain": 0.002, "nn_at_10_gain": -0.003}


def gains(figure: str, gain: float, ceiling: float) -> dict[str, Any]:
    return {
        f"{figure}_gain": gain,
        f"{figure}_gain_ci95": [gain - 0.002, gain + 0.002],
        f"{figure}_ceiling": ceiling,
        f"{figure}_ceiling_ci95": [ceiling - 0.002, ceiling + 0.002],
    }


def pairs() -> dict[str, Any]:
    return {
        "n": 250,
        "task": "similarity",
        "spearman_full": 0.80,
        "ci95_full": [0.75, 0.84],
        "spearman_exit": 0.79,
        "ci95": [0.74, 0.83],
        "expected_layers": 3.1,
        "spearman_by_layer": [0.5, 0.7, 0.785, 0.80],
        "spearman_teacher": 0.82,
        "spearman_truncated": 0.7865,
        **gains("spearman", 0.0035, 0.006),
        "ceiling_expected_layers": 3.09,
        "by_length": [
            {
                "tokens": [1, 8],
                "n": 120,
                "expected_layers": 3.1,
                "spearman_full": 0.80,
                "ci95_full": [0.75, 0.84],
                "spearman_exit": 0.79,
                "ci95": [0.74, 0.83],
                **gains("spearman", 0.0035, 0.006),
            }
        ],
    }


def collection() -> dict[str, Any]:
    scores = {
        f"ndcg_at_{k}_{path}": value
        for k in (1, 3, 5, 10)
        for path, value in (("full", 0.50), ("query_exit", 0.495), ("exit", 0.49))
    }
    return {
        "n_queries": 500,
        "n_documents": 1500,
        **scores,
        "ndcg_at_10_full_ci95": [0.47, 0.53],
        "ndcg_at_10_query_exit_ci95": [0.465, 0.525],
        "ndcg_at_10_exit_ci95": [0.46, 0.52],
        "queries_by_length": [
            {
                "tokens": [9, 16],
                "n": 400,
                "expected_layers": 3.1,
                "ndcg_at_10_full": 0.5,
                "ndcg_at_10_query_exit": 0.495,
                "ndcg_at_10_exit": 0.49,
            }
        ],
        "documents_by_length": [{"tokens": [17, 32], "n": 1000, "expected_layers": 3.2, "similarity": 0.96}],
        "recall_at_100_full": 0.9,
        "recall_at_100_query_exit": 0.895,
        "recall_at_100_exit": 0.89,
        "drop": 0.02,
        "drop_ci95": [0.01, 0.03],
        "query_drop": 0.01,
        "query_drop_ci95": [0.005, 0.015],
        "by_query_layer": [
            {"layer": layer, "own_index": own, "teacher_index": own - 0.02, "both_exit": own - 0.01 * (4 - layer)}
            for layer, own in enumerate((0.45, 0.48, 0.495, 0.50), start=1)
        ],
        "teacher_index": {
            "ndcg_at_10_teacher": 0.52,
            "similarity": 0.9,
            "ndcg_at_10_full": 0.48,
            "ndcg_at_10_query_exit": 0.475,
        },
        "expected_layers_queries": 3.1,
        "expected_layers_documents": 3.2,
    }


def latency() -> dict[str, Any]:
    times = {"full": 4.0, "exit": 3.2, "monitored": 4.1, "truncated": 3.1}
    rows = [
        {
            "device": "cpu",
            "path": path,
            "batch": batch,
            "length": "sentences",
            "tokens": 12.5,
            "ms_p50": ms * batch,
            "ms_p95": 1.1 * ms * batch,
            "ms_p99": 1.2 * ms * batch,
            "ms_mean": ms * batch,
            "ms_std": 0.1,
            "expected_layers": 4.0 if path in ("full", "monitored") else 3.1,
            "deepest_layers": 4.0 if path in ("full", "monitored") or batch > 1 else 3.1,
            "speed_up": 4.0 / ms,
            "speed_up_ci95": [4.0 / ms - 0.05, 4.0 / ms + 0.05],
            "over": "full",
            "layer_reduction_realised": 1.29,
            "monitoring_overhead": 0.025,
        }
        for batch in (1, 8)
        for path, ms in times.items()
    ]
    by_layer = [
        {
            "layer": layer,
            "batch": 1,
            "length": "sentences",
            "ms_p50": float(layer),
            "speed_up": 4 / layer,
            "speed_up_ci95": [3.8 / layer, 4.2 / layer],
            "over": "full",
        }
        for layer in range(1, DEPTH + 1)
    ]
    protocol = {"warmup": 5, "iterations": 40, "precision": "fp32", "speed_up_at_length": "sentences"}
    floor = {"weight_bytes": 8_000_000, "bandwidth_bytes_per_second": 2e10, "ms": 0.4}
    results = {"by_layer": by_layer, "teacher": {**by_layer[1], "layer": 6, "ms_p50": 6.0}}
    return {
        **results,
        "rows": rows,
        "speed_up": 1.25,
        "speed_up_ci95": [1.2, 1.3],
        "floor": floor,
        "protocol": protocol,
    }
