"""Who is champion, as a pure function of the tags of all registered versions.

Versions are taken in the order in which they were examined. The first is champion, a later one takes over if
it is better by the primary metric, or if the two cannot be compared: then the champion has not passed the
examination of now. Two programs that promote at once thus come to the same champion, whoever is faster.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

# The last part of a metric's path that says "less is better".
LESS_IS_BETTER = ("drop", "expected_layers", "nn_fail", "ms_")


@dataclass(frozen=True)
class Entry:
    """A registered version: its number and its tags."""

    number: int
    tags: dict[str, str]

    @property
    def withdrawn(self) -> bool:
        """Whether a rollback took it back."""
        return self.tags.get("leap.withdrawn") == "true"

    @property
    def eligible(self) -> bool:
        """Whether it may be champion: the last verdict on it passes, and nobody took it back."""
        return self.tags.get("leap.passed") == "true" and not self.withdrawn


def rank(entries: Iterable[Entry]) -> tuple[int | None, dict[int, str]]:
    """The champion's number, null where none is eligible, and the decision on every eligible version."""
    examined = sorted(
        (entry for entry in entries if entry.eligible),
        key=lambda entry: (entry.tags.get("leap.examined", ""), entry.number),
    )
    if not examined:
        return None, {}
    champion, won = examined[0], "there was none"
    for entry in examined[1:]:
        better, reason = compare(entry, champion)
        if better:
            champion, won = entry, reason
    decisions = {entry.number: f"stays out: {_loses(entry, champion)}" for entry in examined}
    return champion.number, {**decisions, champion.number: f"became champion: {won}"}


def compare(candidate: Entry, champion: Entry) -> tuple[bool, str]:
    """Whether a candidate replaces the champion, and why. Equal is not better."""
    mine, theirs = _primary(candidate), _primary(champion)
    metric, number = candidate.tags["leap.primary_metric"], champion.number
    for key, what in (("leap.primary_metric", "by another metric"), ("leap.primary_data", "on other data")):
        if candidate.tags[key] != champion.tags.get(key):
            return True, f"version {number} was measured {what} and cannot be compared"
    if mine is None:
        return False, f"{metric} is missing"
    if theirs is None:
        return True, f"{metric} of version {number} is missing"
    sign = -1 if less_is_better(metric) else 1
    word = "better than" if sign * mine > sign * theirs else "equal to" if mine == theirs else "worse than"
    return word == "better than", f"{metric} {mine:.6g} is {word} version {number}'s {theirs:.6g}"


def less_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is the better one, by its name."""
    return metric.rpartition(".")[2].startswith(LESS_IS_BETTER)


def _loses(entry: Entry, champion: Entry) -> str:
    better, reason = compare(entry, champion)
    return f"{reason}, and was examined later" if better else reason


def _primary(entry: Entry) -> float | None:
    value: float | None = json.loads(entry.tags.get("leap.primary_value", "null"))
    return value
