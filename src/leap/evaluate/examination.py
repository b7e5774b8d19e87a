"""The content of diagnose.json: the diagnosis, every exit strategy, the sweep, likeness to the teacher.

One pass over the sentences is all it needs; everything here starts from pooled layers that are there already.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.settings.evaluation import EvaluationSettings
from leap.data.pairs import Pairs
from leap.evaluate.diagnosis import diagnose
from leap.evaluate.encode import full_vectors, layer_vectors, token_counts
from leap.evaluate.judge import Judge, ScoredPairs
from leap.evaluate.likeness import likeness
from leap.evaluate.strategies import Strategy, own_strategies, strategies
from leap.evaluate.sweep import sweep
from leap.evaluate.vector_cache import vector_cache
from leap.evidence.bootstrap import mean_interval
from leap.evidence.bounds import recommend
from leap.exits import LeapEncoder
from leap.exits.neighbours import NeighbourOverlap
from leap.exits.rules import ExitRule, at_layers, converged


def measure_exits(
    model: LeapEncoder,
    teacher: Path,
    pairs: Pairs,
    settings: EvaluationSettings,
    vectors: Path,
    retrofitted: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Diagnose a model on the unique sentences of scored pairs, with its own exit rule.

    Args:
        teacher: the folder of the model that its neighbours are compared with.
        pairs: the sentences, and scores for Spearman's correlation.
        settings: neighbours, batches, bins, resamples, the sweep and the bound of the cache.
        vectors: the folder of the vector cache.
        retrofitted: the model started as the teacher, so that its distance from there is of interest.

    Returns:
        Everything in diagnose.json below its head, and the columns of diagnose.parquet.

    Raises:
        UserError: there are fewer sentences than neighbours.
    """
    sentences = pairs.sentences()
    if len(sentences) <= settings.nn_k:
        raise UserError(
            f"evaluation.nn_k: {len(sentences)} sentences of {settings.primary_set} have no {settings.nn_k} "
            "neighbours each; lower nn_k or choose a larger primary_set"
        )
    cache = vector_cache(settings.cache_gb, vectors)
    pooled = layer_vectors(model, sentences, settings.batch_size, cache)
    tokens = token_counts(model, sentences)
    other = LeapEncoder(teacher, settings.device)
    reference = full_vectors(other, sentences, settings.batch_size, "teacher", cache)
    returned = model.returned(pooled)
    means, rows = sentence_scores(pooled, tokens, sentences, reference, model.rule, settings.nn_k, returned)
    own = own_strategies(model, model.rule)
    return {
        "n": len(sentences),
        "set": settings.primary_set,
        **examine(pooled, tokens, pairs_among(pairs, sentences), model.rule, settings, own, returned),
        "teacher": means,
        "start": likeness_to_start(returned[-1], reference, settings) if retrofitted else None,
    }, rows


def likeness_to_start(full: Tensor, before: Tensor, settings: EvaluationSettings) -> dict[str, Any]:
    """Measure the mean cosine of a retrofitted model's full depth to the model before; both [N, D]."""
    cosines = F.cosine_similarity(full.double(), before.double(), dim=-1).numpy()
    return {
        "similarity": float(cosines.mean()),
        "similarity_ci95": mean_interval(cosines, settings.bootstrap, settings.seed),
    }


def examine(
    pooled: Tensor,
    tokens: Tensor,
    pairs: ScoredPairs | None,
    rule: ExitRule,
    settings: EvaluationSettings,
    own: Mapping[str, Strategy] | None = None,
    returned: Tensor | None = None,
) -> dict[str, Any]:
    """Diagnose a model, judge its exit strategies side by side, and recommend a point of the sweep.

    Args:
        pooled: [L + 1, N, D] float32, of unique sentences.
        tokens: [N] int64, their lengths.
        pairs: scored pairs among them, for Spearman's correlation; none leaves it out.
        rule: the deployable rule.
        settings: neighbours, resamples, bins, and what is swept.
        own: strategies that belong to the model (`leap.evaluate.strategies`).
        returned: what an exit at each layer gives, through the exit heads; `pooled` if None.
    """
    overlaps = NeighbourOverlap(pooled if returned is None else returned, settings.nn_k)
    judge = Judge(overlaps, pairs)
    chosen = settings.sweep
    tried = sorted({*chosen.min_layers, rule.min_layer})  # the model's own l_min by every theta too
    points = sweep(pooled, judge, chosen.thresholds, tried, chosen.patience)
    edges = settings.length_bins
    return {
        **diagnose(overlaps, rule, tokens, edges, settings.bootstrap, settings.seed, pooled),
        "strategies": strategy_rows(pooled, judge, rule, own),
        "sweep": points,
        "recommended": recommend(points),
    }


def strategy_rows(
    pooled: Tensor, judge: Judge, rule: ExitRule, own: Mapping[str, Strategy] | None = None
) -> list[dict[str, Any]]:
    return [
        {"strategy": name, "deployable": name != "near_final", **figures, **judge.gains(figures)}
        for name, choose in strategies(rule, len(pooled) - 1, own).items()
        # The oracle alone looks at what would be returned.
        for figures in (judge(choose(judge.pooled if name == "near_final" else pooled)),)
    ]


def sentence_scores(
    pooled: Tensor,
    tokens: Tensor,
    sentences: Sequence[str],
    teacher: Tensor,
    rule: ExitRule,
    k: int,
    returned: Tensor | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure likeness to the teacher: `teacher` of diagnose.json, and the columns of diagnose.parquet.

    `pooled` is [L + 1, N, D], `tokens` [N] int64, `teacher` [N, T] float32; `returned` is what an exit at each
    layer gives, through the exit heads, `pooled` if None.
    """
    exits = converged(pooled, rule)
    returned = pooled if returned is None else returned
    alike = {
        "full": likeness(returned[-1], teacher, k),
        "exit": likeness(at_layers(returned, exits), teacher, k),
    }
    means = {name: value for mode, item in alike.items() for name, value in item.figures(mode).items()}
    columns: dict[str, Any] = {
        "sentence": list(sentences),
        "tokens": tokens.numpy(),
        "layer": exits.numpy(),
        **{f"teacher_nn_at_10_{mode}": item.neighbours for mode, item in alike.items()},
        **{f"teacher_similarity_{mode}": item.similarity for mode, item in alike.items()},
    }
    return means, columns


def pairs_among(pairs: Pairs, sentences: Sequence[str]) -> ScoredPairs:
    """Place scored pairs among unique sentences, which hold all their sides."""
    place = {sentence: number for number, sentence in enumerate(sentences)}
    one, two = (
        torch.tensor([place[text] for text in side], dtype=torch.int64)
        for side in (pairs.sentence1, pairs.sentence2)
    )
    return ScoredPairs(one, two, pairs.scores)
