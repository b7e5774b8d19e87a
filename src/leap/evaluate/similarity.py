"""Scored sentence pairs: Spearman's correlation of cosines with scores, full, exited and by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.settings.evaluation import EvaluationSettings
from leap.data.pairs import Pairs
from leap.evaluate.duplicates import duplicate_scores
from leap.evaluate.encode import full_vectors, layer_vectors, token_counts
from leap.evaluate.gain import matched_oracle, spearman_gains
from leap.evaluate.layers import interpolate
from leap.evaluate.lengths import Integers, Mask, length_bins
from leap.evaluate.vector_cache import VectorCache, vector_cache
from leap.evidence.bootstrap import percentile_interval, resamples
from leap.evidence.spearman import Array, Counts, spearman, spearman_of_resamples
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged

# Pairs encoded at a time: bounds the memory that all layers of both sides need.
CHUNK = 4096


@dataclass(frozen=True)
class PairCosines:
    """Cosines of P pairs, float64, rounded to nine decimals so that equal pairs tie.

    by_layer: [L, P], both sides at one layer; the last row is full depth.
    exited: [P], each side at its own exit layer.
    layers: [2, P], each side's exit layer.
    oracle: [P], each side at the oracle's layer, at the same expected depth.
    oracle_layers: [2, P].
    tokens: [2, P], each side's length.
    """

    by_layer: Array
    exited: Array
    layers: Integers
    oracle: Array
    oracle_layers: Integers
    tokens: Integers

    @property
    def expected_layers(self) -> float:
        return float(self.layers.mean())

    def of(self, pairs: Mask) -> "PairCosines":
        return PairCosines(**{name: values[..., pairs] for name, values in vars(self).items()})


def measure_sts(
    model: LeapEncoder,
    pairs: Pairs,
    task: Literal["similarity", "duplicates"],
    settings: EvaluationSettings,
    vectors: Path,
    teacher: LeapEncoder | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure a model on one set of scored pairs, with its own exit rule.

    Args:
        task: duplicates adds average precision and the best F1 over all thresholds.
        settings: batches, bins, resamples and the bound of the cache.
        vectors: the folder of the vector cache.
        teacher: the model whose own correlation is given too.

    Returns:
        Everything in sts/<set>.json below its head, and the columns of sts/<set>.parquet.
    """
    cache = vector_cache(settings.cache_gb, vectors)
    cosines = pair_cosines(model, pairs.sentence1, pairs.sentence2, model.rule, settings.batch_size, cache)
    figures = similarity_figures(
        cosines, pairs.scores, task, settings.bootstrap, settings.seed, settings.length_bins
    )
    figures["spearman_teacher"] = None if teacher is None else full_depth_spearman(teacher, pairs, settings, cache)
    return figures, pair_columns(cosines, pairs.scores)


def full_depth_spearman(
    model: LeapEncoder, pairs: Pairs, settings: EvaluationSettings, cache: VectorCache | None
) -> float:
    vectors = full_vectors(model, pairs.sentences(), settings.batch_size, "teacher", cache).double()
    place = {text: number for number, text in enumerate(pairs.sentences())}
    one, two = (vectors[[place[text] for text in side]] for side in (pairs.sentence1, pairs.sentence2))
    return spearman(F.cosine_similarity(one, two, dim=-1).numpy().round(9), pairs.scores)


def pair_cosines(
    model: LeapEncoder,
    sentence1: Sequence[str],
    sentence2: Sequence[str],
    rule: ExitRule,
    batch_size: int,
    cache: VectorCache | None = None,
) -> PairCosines:
    """Encode both sides of every pair once and compare them at every layer and at their exits.

    Where pairs are encoded in several chunks, the oracle matches the expected depth within each.
    """
    parts = []
    for start in range(0, len(sentence1), CHUNK):
        left, right = sentence1[start : start + CHUNK], sentence2[start : start + CHUNK]
        place = {text: number for number, text in enumerate(dict.fromkeys([*left, *right]))}
        pooled = layer_vectors(model, list(place), batch_size, cache)
        sides = torch.tensor([[place[text] for text in side] for side in (left, right)])
        tokens = token_counts(model, list(place))
        parts.append(_cosines(pooled, model.returned(pooled), sides, rule, tokens))
    return PairCosines(
        **{name: np.concatenate([vars(part)[name] for part in parts], axis=-1) for name in vars(parts[0])}
    )


def similarity_figures(
    cosines: PairCosines,
    scores: Array,
    task: Literal["similarity", "duplicates"],
    draws: int,
    seed: int,
    length_edges: Sequence[int] = (),
) -> dict[str, Any]:
    """Compute everything in sts/<set>.json below its head (docs/formats.md).

    Args:
        scores: [P] float64; 0 or 1 where the task is duplicates.
        task: duplicates adds average precision and the best F1 over all thresholds.
        draws: bootstrap resamples over pairs.
        seed: of the resamples; all intervals use the same ones.
        length_edges: of the bins by the longer side's tokens; none leaves `by_length` empty.
    """
    by_layer = [spearman(layer, scores) for layer in cosines.by_layer]
    figures: dict[str, Any] = {
        "n": len(scores),
        "task": task,
        **_correlations(cosines, scores, draws, seed),
        "expected_layers": cosines.expected_layers,
        "spearman_by_layer": by_layer,
        "spearman_truncated": interpolate(by_layer, cosines.expected_layers),
        "ceiling_expected_layers": float(cosines.oracle_layers.mean()),
    }
    if task == "duplicates":
        for mode, values in (("full", cosines.by_layer[-1]), ("exit", cosines.exited)):
            precision, f1 = duplicate_scores(values, scores)
            figures |= {f"average_precision_{mode}": precision, f"best_f1_{mode}": f1}
    figures["by_length"] = [
        {
            "tokens": bounds,
            "n": int(pairs.sum()),
            "expected_layers": cosines.of(pairs).expected_layers,
            **_correlations(cosines.of(pairs), scores[pairs], draws, seed),
        }
        for bounds, pairs in length_bins(cosines.tokens.max(axis=0), length_edges)
    ]
    return figures


def pair_columns(cosines: PairCosines, scores: Array) -> dict[str, Any]:
    """List the columns of sts/<set>.parquet: what a comparison with another variant needs of each pair."""
    return {
        "score": scores,
        "cosine_full": cosines.by_layer[-1],
        "cosine_exit": cosines.exited,
        **{f"layer{side + 1}": cosines.layers[side] for side in range(2)},
        **{f"tokens{side + 1}": cosines.tokens[side] for side in range(2)},
    }


def _correlations(cosines: PairCosines, scores: Array, draws: int, seed: int) -> dict[str, Any]:
    """Full, exited, their intervals, the adaptive gain and its ceiling: all on the same resamples."""
    value = _resample(cosines, scores, np.ones((1, len(scores)), dtype=np.int64))
    blocks = [_resample(cosines, scores, counts) for counts in resamples(len(scores), draws, seed)]
    values = {name: float(value[name][0]) for name in value}
    interval = {name: percentile_interval([block[name] for block in blocks]) for name in value}
    return {
        "spearman_full": values["full"],
        "ci95_full": interval["full"],
        "spearman_exit": values["exit"],
        "ci95": interval["exit"],
        "spearman_gain": values["gain"],
        "spearman_gain_ci95": interval["gain"],
        "spearman_ceiling": values["ceiling"],
        "spearman_ceiling_ci95": interval["ceiling"],
    }


def _resample(cosines: PairCosines, scores: Array, counts: Counts) -> dict[str, Array]:
    both = spearman_of_resamples(np.stack([cosines.by_layer[-1], cosines.exited]), scores, counts)
    chosen = ((cosines.layers, cosines.exited), (cosines.oracle_layers, cosines.oracle))
    gain, ceiling = (
        spearman_gains(cosines.by_layer, layers.mean(axis=0), own, counts, scores) for layers, own in chosen
    )
    return {"full": both[0], "exit": both[1], "gain": gain, "ceiling": ceiling}


def _cosines(own: Tensor, pooled: Tensor, sides: Tensor, rule: ExitRule, tokens: Tensor) -> PairCosines:
    """Of unique sentences, [L + 1, N, D], their own layers and what exits return; the sides' places, [2, P]."""
    exits = converged(own, rule)
    # The expected depth over the pairs' sides, in which a sentence may come several times.
    oracle, _ = matched_oracle(pooled[:, sides.flatten()], exits[sides].double().mean().item())
    by_layer = F.cosine_similarity(pooled[1:, sides[0]].double(), pooled[1:, sides[1]].double(), dim=-1)
    oracle_sides = oracle.view(2, -1)
    exited = at_layers(pooled, exits).double()
    at_oracle = pooled[oracle_sides, sides].double()
    return PairCosines(
        by_layer=by_layer.numpy().round(9),
        exited=F.cosine_similarity(exited[sides[0]], exited[sides[1]], dim=-1).numpy().round(9),
        layers=exits[sides].numpy(),
        oracle=F.cosine_similarity(at_oracle[0], at_oracle[1], dim=-1).numpy().round(9),
        oracle_layers=oracle_sides.numpy(),
        tokens=tokens[sides].numpy(),
    )
