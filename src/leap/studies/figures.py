"""Figures of a model on the primary set under any choice of exit layers, from one pass of all layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.settings.studies import Study
from leap.data.pairs import Pairs
from leap.evaluate.encode import layer_vectors
from leap.evaluate.layers import interpolate, layer_overlaps, layer_rows, share_below
from leap.evaluate.strategies import Strategy
from leap.evidence.spearman import Array, spearman
from leap.exits import ExitRule, LeapEncoder
from leap.exits.neighbours import NeighbourOverlap, neighbours, overlap
from leap.exits.rules import at_layers, consecutive_similarity, converged, first_layer_at, near_final, patient

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """All layers of the primary set's sentences, and its pairs.

    pooled: [L + 1, N, D] float32.
    one, two: [P] int64, each pair's sides.
    scores: [P] float64.
    reference: [N, k] int64, each sentence's neighbours at full depth and width.
    """

    pooled: Tensor
    one: Tensor
    two: Tensor
    scores: Array
    reference: Tensor

    @property
    def depth(self) -> int:
        return len(self.pooled) - 1

    def figures(self, exits: Tensor, width: int | None = None) -> Row:
        """Compute quality and cost of a choice of layers, [N] int64, counted from 1.

        `width` keeps so many of the vector's first dimensions, all if None; the reference of nn_at_10 is full
        depth at full width.
        """
        vectors = at_layers(self.pooled, exits)[:, :width]
        expected = exits.double().mean().item()
        near = F.cosine_similarity(vectors, self.pooled[-1, :, :width], dim=-1)
        shares = overlap(neighbours(vectors, self.reference.shape[1]), self.reference)
        return {
            "spearman": self.correlation(vectors),
            "expected_layers": expected,
            "layer_reduction": self.depth / expected,
            "exit_rate": (exits < self.depth).double().mean().item(),
            "similarity": near.double().mean().item(),
            "nn_at_10": shares.mean().item(),
            "nn_fail_50": share_below(shares, 0.5),
        }

    def correlation(self, vectors: Tensor) -> float:
        vectors = vectors.double()
        cosines = F.cosine_similarity(vectors[self.one], vectors[self.two], dim=-1)
        return spearman(cosines.numpy().round(9), self.scores)

    def full_depth(self) -> Tensor:
        return torch.full((self.pooled.shape[1],), self.depth)


def measure_student(model: LeapEncoder, pairs: Pairs, k: int, batch_size: int) -> Measured:
    """Encode the set's unique sentences at every layer."""
    place = {text: row for row, text in enumerate(dict.fromkeys([*pairs.sentence1, *pairs.sentence2]))}
    pooled = layer_vectors(model, list(place), batch_size)
    one, two = (torch.tensor([place[text] for text in side]) for side in (pairs.sentence1, pairs.sentence2))
    return Measured(pooled, one, two, pairs.scores, neighbours(pooled[-1], k))


def usual_figures(taken: Measured, rule: ExitRule) -> Row:
    """Compute the figures of every model of every study: full, exited, cut at the same depth, by layer."""
    exited = taken.figures(converged(taken.pooled, rule))
    oracle = near_final(taken.pooled, rule.threshold)
    by_layer = [taken.correlation(layer) for layer in taken.pooled[1:]]
    layers = layer_rows(
        taken.pooled, rule, layer_overlaps(NeighbourOverlap(taken.pooled, taken.reference.shape[1]))
    )
    return {
        "depth": taken.depth,
        "rule": {"threshold": rule.threshold, "min_layer": rule.min_layer, "patience": rule.patience},
        "spearman_full": by_layer[-1],
        "spearman_exit": exited.pop("spearman"),
        "spearman_truncated": interpolate(by_layer, exited["expected_layers"]),
        **exited,
        "oracle": taken.figures(oracle),
        "layers": [{**row, "spearman": correlation} for row, correlation in zip(layers, by_layer, strict=True)],
    }


def threshold_rows(taken: Measured, rule: ExitRule, thresholds: list[float]) -> list[Row]:
    """Return a row a theta under each of the two rules; `near_final` without l_min, as the paper's arise."""
    scores = consecutive_similarity(taken.pooled, rule.patience)
    by_rule: dict[str, Callable[[float], Tensor]] = {
        "converged": lambda theta: first_layer_at(scores, theta, rule.min_layer),
        "near_final": lambda theta: near_final(taken.pooled, theta),
    }
    return [
        {
            "strategy": name,
            "threshold": theta,
            **taken.figures(exits := leaves(theta)),
            "exit_by_7": (exits <= 7).double().mean().item() if taken.depth > 7 else None,
        }
        for name, leaves in by_rule.items()
        for theta in thresholds
    ]


def patience_rows(taken: Measured, rule: ExitRule, patiences: list[int]) -> list[Row]:
    """Return a row a p of PABEE's rule (Zhou et al. 2020) for vectors: p consecutive layers that hardly move."""
    return [
        {"strategy": "pabee", "patience": p, **taken.figures(patient(taken.pooled, rule, p))} for p in patiences
    ]


def width_rows(taken: Measured, rule: ExitRule, shares: list[float]) -> list[Row]:
    """Return a row a width, at full depth and exited: what is left of quality, and of layers times width."""
    exits, full = converged(taken.pooled, rule), taken.full_depth()
    rows = []
    for share in shares:
        width = max(1, round(share * taken.pooled.shape[2]))
        for path, layers in (("full", full), ("exit", exits)):
            figures = taken.figures(layers, width)
            saved = figures["layer_reduction"] * taken.pooled.shape[2] / width
            rows.append({"path": path, "width": width, "share": share, **figures, "reduction": saved})
    return rows


def own_rows(taken: Measured, own: Mapping[str, Strategy]) -> list[Row]:
    """Return a row a strategy that belongs to the model: learned heads, calibrated thresholds."""
    return [{"strategy": name, **taken.figures(leaves(taken.pooled))} for name, leaves in own.items()]


def extra_rows(taken: Measured, rule: ExitRule, study: Study, own: Mapping[str, Strategy]) -> dict[str, list[Row]]:
    """Return what a study measures in addition to the usual figures and PABEE's: a model's own strategies too."""
    rows = {
        "thresholds": threshold_rows(taken, rule, study.thresholds),
        "patiences": patience_rows(taken, rule, study.patiences),
        "own": own_rows(taken, own) if study.patiences else [],
        "widths": width_rows(taken, rule, study.widths),
    }
    return {name: table for name, table in rows.items() if table}
