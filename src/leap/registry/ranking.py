"""The comparison of a version with the champion: a pure function of their tags."""

import json
from collections.abc import Mapping

# The last part of a metric's path that says "less is better".
LESS_IS_BETTER = ("drop", "expected_layers", "nn_fail", "ms_")

Tags = Mapping[str, str]


def compare(candidate: Tags, champion: Tags, number: int) -> tuple[bool, str]:
    """Return whether a candidate that passes replaces the champion, and why; by their tags. Equal is not better.

    `leap.decision` is empty while a candidate is examined for the first time; `number` is the champion's version.
    """
    mine, theirs = _primary(candidate), _primary(champion)
    metric = candidate["leap.primary_metric"]
    if champion.get("leap.passed") != "true":
        return True, f"version {number} is refused now"
    if _same(candidate, champion, "leap.variant", "leap.seed", "leap.checkpoint"):
        return True, f"version {number} has the same weights with another exit rule, tokenizer or code"
    for key, difference in (("leap.primary_metric", "by another metric"), ("leap.primary_data", "on other data")):
        if not _same(candidate, champion, key):
            # Decided once: else two projects with data of their own would take the alias from each other forever.
            first = not candidate.get("leap.decision")
            return first, f"version {number} was measured {difference} and cannot be compared"
    if mine is None:
        return False, f"{metric} is missing"
    if theirs is None:
        return True, f"{metric} of version {number} is missing"
    sign = -1 if less_is_better(metric) else 1
    word = "better than" if sign * mine > sign * theirs else "equal to" if mine == theirs else "worse than"
    return word == "better than", f"{metric} {mine:.6g} is {word} version {number}'s {theirs:.6g}"


def less_is_better(metric: str) -> bool:
    """Return whether a smaller value of a metric is the better one, by its name."""
    return metric.rpartition(".")[2].startswith(LESS_IS_BETTER)


def _same(one: Tags, other: Tags, *names: str) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _primary(tags: Tags) -> float | None:
    value: float | None = json.loads(tags.get("leap.primary_value", "null"))
    return value
