"""One variant against another on the same pairs, queries and sentences: differences with paired intervals.

Adaptive gain against a rival that was trained for a fixed depth is read here: early exit's quality minus the
rival's at full depth, on the same rows. The rows come from the tables next to the evidence.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leap.core.errors import UserError
from leap.core.settings import Settings
from leap.evidence.bootstrap import percentile_interval, resamples
from leap.evidence.score_table import Column, read_scores
from leap.evidence.spearman import Array, Counts, spearman_of_resamples

EVALUATIONS = Path("evaluations")
MODES = ("full", "exit")

# What of a table must be equal for its rows to be the same ones, by kind.
SAME_ROWS = {"sts": ("score",), "retrieval": ("query",), "diagnose": ("sentence",)}


def against_rivals(
    settings: Settings, variant: str, seed: int, root: Path = EVALUATIONS
) -> dict[str, dict[str, Any]]:
    """Compare a checkpoint with the gate's rivals of the same seed: role to what `compare` gives.

    `fixed_depth`'s `exit` is the adaptive gain against a student that was trained for one depth. The variant is
    not compared with itself.

    Raises:
        UserError: a table is missing or damaged, or two were measured on different data.
    """
    names = {"baseline": settings.gate.baseline, "fixed_depth": settings.gate.fixed_depth}
    chosen = settings.evaluation
    return {
        role: {
            "variant": name,
            **compare(
                root / f"{variant}-{seed}",
                root / f"{name}-{seed}",
                list(settings.similarity),
                list(settings.retrieval),
                chosen.bootstrap,
                chosen.seed,
            ),
        }
        for role, name in names.items()
        if name not in (None, variant)
    }


def compare(
    own: Path, rival: Path, similarity: Sequence[str], retrieval: Sequence[str], draws: int, seed: int
) -> dict[str, Any]:
    """Compare a checkpoint with a rival at the rival's full depth, its own exits and its own full depth in turn.

    `own` and `rival` are the folders of evidence; `similarity` and `retrieval` name the sets.

    Returns:
        `sts.<set>`, `retrieval.<set>` (nDCG@10), `teacher_nn_at_10` and `teacher_similarity` (likeness to the
        teacher), each with `full` and `exit`: {difference, ci95, p_value}.

    Raises:
        UserError: a table is missing or damaged, or the two were measured on different rows.
    """

    def tables(kind: str, name: str) -> tuple[dict[str, Column], dict[str, Column]]:
        one, two = (read_scores(folder / f"{name}.parquet") for folder in (own, rival))
        for key in SAME_ROWS[kind]:
            if len(one[key]) != len(two[key]) or (one[key] != two[key]).any():
                raise UserError(
                    f"{own / name}.parquet and {rival / name}.parquet were measured on different data: "
                    "`dvc repro` measures both again"
                )
        return one, two

    differences: dict[str, Any] = {"sts": {}, "retrieval": {}}
    for name in similarity:
        one, two = tables("sts", f"sts/{name}")
        differences["sts"][name] = {
            mode: spearman_difference(one[f"cosine_{mode}"], two["cosine_full"], one["score"], draws, seed)
            for mode in MODES
        }
    for name in retrieval:
        one, two = tables("retrieval", f"retrieval/{name}")
        differences["retrieval"][name] = {
            mode: mean_difference(one[f"ndcg_at_10_{mode}"], two["ndcg_at_10_full"], draws, seed) for mode in MODES
        }
    one, two = tables("diagnose", "diagnose")
    for figure in ("teacher_nn_at_10", "teacher_similarity"):
        differences[figure] = {
            mode: mean_difference(one[f"{figure}_{mode}"], two[f"{figure}_full"], draws, seed) for mode in MODES
        }
    return differences


def spearman_difference(one: Array, two: Array, scores: Array, draws: int, seed: int) -> dict[str, Any]:
    """Test how much better one set of cosines orders the pairs than another; all [P] float64."""

    def difference(counts: Counts) -> Array:
        correlations = spearman_of_resamples(np.stack([one, two]), scores, counts)
        gap: Array = correlations[0] - correlations[1]
        return gap

    return _test_difference(difference, len(scores), draws, seed)


def mean_difference(one: Array, two: Array, draws: int, seed: int) -> dict[str, Any]:
    """Test how much higher the mean of one set of scores is than of another on the same rows; both [N] float64."""

    def difference(counts: Counts) -> Array:
        gap: Array = counts @ (one - two) / counts[0].sum()
        return gap

    return _test_difference(difference, len(one), draws, seed)


def _test_difference(difference: Callable[[Counts], Array], rows: int, draws: int, seed: int) -> dict[str, Any]:
    """The difference, its 95 % interval, and the two-sided p-value of no difference by the same resamples.

    The p-value is twice the share of resamples on the other side of 0 (Efron and Tibshirani 1993, chapter
    15), never below 2 / (draws + 1).
    """
    value = float(difference(np.ones((1, rows), dtype=np.int64))[0])
    blocks = [difference(counts) for counts in resamples(rows, draws, seed)]
    gaps = np.concatenate(blocks)
    tail = min((gaps <= 0).sum(), (gaps >= 0).sum())
    return {
        "difference": value,
        "ci95": percentile_interval(blocks),
        "p_value": float(min(1.0, 2 * (tail + 1) / (draws + 1))),
    }
