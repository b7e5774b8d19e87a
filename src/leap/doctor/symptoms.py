"""The paper's three diagnostics of exit-incompatible models (section 5.2), and the one that it misses."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from leap.evaluate.layers import is_monotonic
from leap.evidence.bounds import NEAR
from leap.evidence.spearman import Array

# Paper, section 5.2: a curve that stays below this until the last layer is flat.
FLAT = 0.7
# Checks that cost more than this, where fewer than a tenth leave, do not pay.
COSTLY, RARE = 0.15, 0.10
# "0 %" of the paper's tables: its layer-aligned models have 0 and 0.7 %.
NOBODY = 0.01


@dataclass(frozen=True)
class Symptom:
    """One diagnostic.

    name: what it is called.
    found: whether the model has it.
    figures: what was measured.
    words: the figures, for a person.
    """

    name: str
    found: bool
    figures: dict[str, Any]
    words: str


def flat_curve(layers: list[dict[str, Any]], min_layer: int) -> Symptom:
    """Diagnostic 1: from l_min on no layer but the last comes near the last one."""
    between = [row["similarity_to_final"] for row in layers[min_layer - 1 : -1]]
    highest = max(between, default=0.0)
    monotonic = is_monotonic([row["similarity_to_final"] for row in layers])
    rises = f"The curve {'rises' if monotonic else 'does not rise'} at every layer"
    where = f"layers {min_layer} to {len(layers) - 1}"
    return Symptom(
        "flat similarity curve",
        highest < FLAT,
        {"highest_similarity": highest, "bound": FLAT},
        f"{where} reach a cosine of {highest:.2f} to the last layer; flat is below {FLAT:g}. {rises}"
        if between
        else "there is no layer between min_layer and the last",
    )


def zero_exits(rate: float, threshold: float) -> Symptom:
    """Diagnostic 2: practically no sentence leaves before the last layer."""
    return Symptom(
        "zero exit rate",
        rate < NOBODY,
        {"rate": rate, "bound": NOBODY},
        f"{rate:.1%} leave early at theta {threshold:g}; below {NOBODY:.0%} counts as none",
    )


def costly_checks(overhead: float, rate: float) -> Symptom:
    """Diagnostic 3: watching costs more than the few that leave save."""
    return Symptom(
        "monitoring overhead dominates",
        overhead > COSTLY and rate < RARE,
        {"overhead": overhead, "rate": rate, "bound": COSTLY},
        f"checks cost {overhead:.1%} of full depth while {rate:.1%} leave; "
        f"too much is above {COSTLY:.0%} where fewer than {RARE:.0%} leave",
    )


def false_convergence(similarity: Array, leaves: Array) -> Symptom:
    """The fourth: sentences leave although their vectors are still far from the final ones.

    The consecutive-layer rule sees that a vector stands still, not where it stands.

    Args:
        similarity: [N], each sentence's cosine at its exit to its final vector.
        leaves: [N] bool, whether it leaves before the last layer.
    """
    share = float(leaves.mean())
    far = float((similarity[leaves.astype(bool)] < NEAR).mean()) if share else 0.0
    mean = float(np.mean(similarity[leaves.astype(bool)])) if share else None
    words = (
        "nobody leaves early"
        if mean is None
        else f"{far:.1%} of the {share:.1%} that leave early are far from their final vector (cosine below "
        f"{NEAR:g}); those that leave have {mean:.3f} on average"
    )
    return Symptom(
        "false convergence",
        share >= RARE and mean is not None and mean < NEAR,
        {"rate": share, "similarity_of_leavers": mean, "far": far, "bound": NEAR},
        words,
    )
