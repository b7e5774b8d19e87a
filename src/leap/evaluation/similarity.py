"""Scored sentence pairs: Spearman's correlation of cosines with scores, full, exited and by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from leap.evaluation.bootstrap import spearman_interval
from leap.evaluation.encode import layer_vectors
from leap.evaluation.layers import interpolated
from leap.evaluation.spearman import Array, spearman
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged

# Pairs encoded at a time: bounds the memory that all layers of both sides need.
CHUNK = 4096


@dataclass(frozen=True)
class PairCosines:
    """Cosines of P pairs, float64, rounded to nine decimals so that equal pairs tie.

    by_layer: [L, P], both sides at one layer; the last row is full depth.
    exited: [P], each side at its own exit layer.
    expected_layers: mean exit layer over both sides of all pairs.
    """

    by_layer: Array
    exited: Array
    expected_layers: float


def pair_cosines(
    model: LeapEncoder,
    sentence1: Sequence[str],
    sentence2: Sequence[str],
    rule: ExitRule,
    batch_size: int,
) -> PairCosines:
    """Encodes both sides of every pair once and compares them at every layer and at their exits."""
    by_layer, exited, layers = [], [], 0
    for start in range(0, len(sentence1), CHUNK):
        left, right = sentence1[start : start + CHUNK], sentence2[start : start + CHUNK]
        place = {text: number for number, text in enumerate(dict.fromkeys([*left, *right]))}
        pooled = layer_vectors(model, list(place), batch_size)
        exits = converged(pooled, rule)
        one = torch.tensor([place[text] for text in left])
        two = torch.tensor([place[text] for text in right])
        by_layer.append(F.cosine_similarity(pooled[1:, one].double(), pooled[1:, two].double(), dim=-1))
        vectors = at_layers(pooled, exits).double()
        exited.append(F.cosine_similarity(vectors[one], vectors[two], dim=-1))
        layers += int(exits[one].sum() + exits[two].sum())
    return PairCosines(
        torch.cat(by_layer, dim=1).numpy().round(9),
        torch.cat(exited).numpy().round(9),
        layers / (2 * len(sentence1)),
    )


def similarity_figures(
    cosines: PairCosines,
    scores: Array,
    task: Literal["similarity", "duplicates"],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Everything in sts/<set>.json below its head (docs/architecture.md).

    Args:
        cosines: of the pairs.
        scores: [P] float64; 0 or 1 where the task is duplicates.
        task: duplicates adds average precision and the best F1 over all thresholds.
        draws: bootstrap resamples over pairs.
        seed: of the resamples; both intervals use the same ones.
    """
    full, exited = cosines.by_layer[-1], cosines.exited
    by_layer = [spearman(layer, scores) for layer in cosines.by_layer]
    figures: dict[str, Any] = {
        "n": len(scores),
        "task": task,
        "spearman_full": by_layer[-1],
        "ci95_full": spearman_interval(full, scores, draws, seed),
        "spearman_exit": spearman(exited, scores),
        "ci95": spearman_interval(exited, scores, draws, seed),
        "expected_layers": cosines.expected_layers,
        "spearman_by_layer": by_layer,
        "spearman_truncated": interpolated(by_layer, cosines.expected_layers),
    }
    if task == "duplicates":
        for mode, values in (("full", full), ("exit", exited)):
            precision, f1 = duplicate_scores(values, scores)
            figures |= {f"average_precision_{mode}": precision, f"best_f1_{mode}": f1}
    return figures


def duplicate_scores(cosines: Array, labels: Array) -> tuple[float, float]:
    """Average precision, and the best F1 over all thresholds.

    Args:
        cosines: [P].
        labels: [P], 1 for duplicates, 0 for others.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve  # takes 2 s

    precision, recall, _ = precision_recall_curve(labels, cosines)
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
    return float(average_precision_score(labels, cosines)), float(f1.max())
