"""Metric paths of the gate, resolved on the evidence; docs/architecture.md lists them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leap.evaluation.evidence import Evidence

# The rivals of the comparison metrics: which setting of the gate names the variant.
RIVALS = {"sts.drop_vs_baseline": "baseline", "sts.drop_vs_fixed_depth": "fixed_depth"}


@dataclass(frozen=True)
class Measured:
    """What the evidence says about one metric."""

    metric: str
    # null: the evidence has no such number
    value: float | None
    n: int | None = None
    # 95 %, [low, high]
    interval: tuple[float, float] | None = None
    # Why there is nothing to judge, for example a variant compared with itself.
    not_applicable: str | None = None


# The evidence of the variants to compare with, of the same seed, by their role in the settings.
Rivals = Mapping[str, Evidence]


def expand(metric: str, evidence: Evidence) -> list[str]:
    """The metric for every retrieval set that its star stands for; a metric without a star is itself."""
    root, star, rest = metric.partition(".*")
    if not star:
        return [metric]
    names = sorted(evidence.retrieval) if root == "retrieval" else []
    # A star that stands for nothing stays as it is: it resolves to nothing, and that fails.
    return [f"{root}.{name}{rest}" for name in names] or [metric]


def measure(metric: str, evidence: Evidence, primary_set: str, rivals: Rivals) -> Measured:
    """Looks a metric up, or computes it where it compares two numbers.

    Args:
        metric: a path without a star.
        evidence: of the candidate.
        primary_set: the pair set that `sts.*` speaks of.
        rivals: for `sts.drop_vs_baseline` and `sts.drop_vs_fixed_depth`.
    """
    root, _, rest = metric.partition(".")
    pairs = evidence.sts.get(primary_set, {})
    if metric in RIVALS:
        return _drop_against(metric, RIVALS[metric], evidence, primary_set, rivals)
    if metric == "sts.drop_vs_full":
        drop = relative_drop(number(pairs.get("spearman_exit")), number(pairs.get("spearman_full")))
        return Measured(metric, drop, _count(pairs, "n"))
    if root == "sts":
        return Measured(metric, number(pairs.get(rest)), _count(pairs, "n"), _sts_interval(pairs, rest))
    if root == "retrieval":
        name, _, key = rest.partition(".")
        collection = evidence.retrieval.get(name, {})
        return Measured(metric, number(collection.get(key)), _count(collection, "n_queries"))
    if root == "latency":
        latency = evidence.latency or {}
        return Measured(metric, number(latency.get(rest)), _count(latency.get("protocol", {}), "iterations"))
    diagnose = evidence.diagnose or {}
    block = diagnose.get(root)
    block = block if isinstance(block, dict) else {}
    return Measured(metric, number(block.get(rest)), _count(diagnose, "n"), _pair(block.get(f"{rest}_ci95")))


def data_behind(metric: str, evidence: Evidence, primary_set: str) -> dict[str, str]:
    """The hashes of the data that a metric was measured on: two values compare only if these are equal."""
    root, _, rest = metric.partition(".")
    source: dict[str, Any] | None = {
        "sts": evidence.sts.get(primary_set),
        "retrieval": evidence.retrieval.get(rest.partition(".")[0]),
        "latency": evidence.latency,
    }.get(root, evidence.diagnose)
    return dict((source or {}).get("data", {}))


def relative_drop(value: float | None, reference: float | None) -> float | None:
    """1 - value / reference; negative is a gain. Null where a number is missing or the reference not > 0."""
    if value is None or reference is None or not reference > 0:
        return None
    return 1 - value / reference


def number(value: Any) -> float | None:
    """A finite number as float, anything else as null: text, null, NaN, infinity, a list."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _drop_against(metric: str, role: str, evidence: Evidence, primary_set: str, rivals: Rivals) -> Measured:
    rival = rivals.get(role)
    if rival is None:
        return Measured(metric, None)
    if rival.variant == evidence.variant:
        return Measured(metric, None, not_applicable=f"{rival.variant} is gate.{role} itself")
    pairs = evidence.sts.get(primary_set, {})
    full = number(rival.sts.get(primary_set, {}).get("spearman_full"))
    return Measured(metric, relative_drop(number(pairs.get("spearman_exit")), full), _count(pairs, "n"))


def _sts_interval(pairs: dict[str, Any], key: str) -> tuple[float, float] | None:
    name = {"spearman_exit": "ci95", "spearman_full": "ci95_full"}.get(key)
    return _pair(pairs.get(name)) if name else None


def _pair(interval: Any) -> tuple[float, float] | None:
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return None
    # An interval that is there but not finite must not pass for "no interval": NaN fails every bound.
    low, high = (math.nan if number(bound) is None else float(bound) for bound in interval)
    return low, high


def _count(block: dict[str, Any], key: str) -> int | None:
    count = block.get(key)
    return count if isinstance(count, int) and not isinstance(count, bool) else None
