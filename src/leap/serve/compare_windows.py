"""Two windows against each other: which of the paper's alerts they raise."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from leap.core.settings.monitoring import MonitoringSettings
from leap.serve.window import Window, stamp

Outcome = Literal["alert", "fine", "not judged"]


@dataclass(frozen=True)
class Finding:
    """One rule's outcome.

    value: what is compared with the limit; null where it could not be judged.
    """

    rule: str
    outcome: Outcome
    value: float | None
    limit: float
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A reference window, a current one and what the rules say."""

    reference: Window
    current: Window
    findings: tuple[Finding, ...]

    @property
    def alerts(self) -> list[str]:
        return [finding.rule for finding in self.findings if finding.outcome == "alert"]

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "comparison",
            "alerts": self.alerts,
            "findings": [asdict(finding) for finding in self.findings],
            "distribution_distance": distribution_distance(self.reference, self.current),
            "reference": self.reference.as_json(),
            "current": self.current.as_json(),
        }


def compare(reference: Window, current: Window, limits: MonitoringSettings) -> Comparison:
    """Judge the current window.

    The paper alerts when the exit distribution shifts by more than one layer or NN@10 drops by more than 20 %
    (Appendix "Practical Adoption Checklist"), raises theta when some 20 % of the sentences fail, NN@10 below
    0.5 (Limitations), and calls a model exit-incompatible when fewer than 10 % exit (Diagnostic 3). Ours is the
    score shift: calibrated thresholds hold only for sentences that score like those of the calibration.

    Raises:
        ValueError: the windows are of models of different depths, whose layers mean different things.
    """
    if reference.depth != current.depth:
        raise ValueError(f"the windows are of models of {reference.depth} and {current.depth} layers")
    findings = (
        _layer_shift(reference, current, limits),
        _nn_drop(reference, current, limits),
        _nn_fail(current, limits),
        _exit_rate(current, limits),
        _score_shift(current, limits),
    )
    return Comparison(reference, current, findings)


def distribution_distance(reference: Window, current: Window) -> float | None:
    """Return the layers that the average sentence moved (Wasserstein-1).

    It is above the shift of the mean where some sentences leave earlier and others later.
    """
    if not reference.sentences or not current.sentences:
        return None
    behind = distance = 0.0
    for before, now in zip(reference.exits, current.exits, strict=True):
        behind += now / current.sentences - before / reference.sentences
        distance += abs(behind)
    return distance


def differences(reference: Window, current: Window) -> list[str]:
    """List what else changed between the windows, in words: the first things to look at after an alert."""
    notes = []
    if reference.model["checkpoint"] != current.model["checkpoint"]:
        notes.append(
            f"the windows are of two models: {reference.model['checkpoint'][:12]} and "
            f"{current.model['checkpoint'][:12]}"
        )
    if reference.model["exit_rule"] != current.model["exit_rule"]:
        notes.append(f"the exit rule was {reference.model['exit_rule']}, now {current.model['exit_rule']}")
    if _shares(reference.rules) != _shares(current.rules):
        notes.append(f"requests chose these exit rules: {_list(reference.rules)}; now: {_list(current.rules)}")
    if reference.started < current.ended and current.started < reference.ended:
        notes.append(
            f"the windows overlap: {stamp(reference.started)} to {stamp(reference.ended)} and "
            f"{stamp(current.started)} to {stamp(current.ended)}"
        )
    if current.not_finite:
        notes.append(f"{current.not_finite} similarities are not numbers: is the model damaged?")
    return notes


def _layer_shift(reference: Window, current: Window, limits: MonitoringSettings) -> Finding:
    rule, limit = "exit_layer_shift", limits.max_layer_shift
    if few := _too_few(limits, reference, current):
        return Finding(rule, "not judged", None, limit, few)
    before, now = reference.mean_layer, current.mean_layer
    assert before is not None
    assert now is not None
    text = f"mean exit layer {before:.2f} -> {now:.2f}"
    return _judge(rule, abs(now - before), limit, f"{text}, shift {now - before:+.2f} (limit {limit:g})")


def _nn_drop(reference: Window, current: Window, limits: MonitoringSettings) -> Finding:
    rule, limit = "nn_at_10_drop", limits.max_nn_drop
    before, now = reference.agreement.mean, current.agreement.mean
    if before is None or now is None:
        which = "reference" if before is None else "current window"
        return Finding(rule, "not judged", None, limit, f"the {which} has too few shadowed sentences")
    drop = 1 - now / before if before else 0.0
    return _judge(rule, drop, limit, f"NN@10 {before:.3f} -> {now:.3f}, drop {drop:.1%} (limit {limit:.0%})")


def _nn_fail(current: Window, limits: MonitoringSettings) -> Finding:
    rule, limit, share = "nn_fail_50", limits.max_nn_fail, current.agreement.failed
    if share is None:
        return Finding(rule, "not judged", None, limit, "the current window has too few shadowed sentences")
    text = f"NN@10 is below 0.5 for {share:.1%} of the sentences (limit {limit:.0%})"
    return _judge(rule, share, limit, text, "; raise the threshold theta, or serve with strategy full")


def _exit_rate(current: Window, limits: MonitoringSettings) -> Finding:
    rule, limit = "exit_rate", limits.min_exit_rate
    if few := _too_few(limits, current):
        return Finding(rule, "not judged", None, limit, few)
    rate = current.exit_rate
    assert rate is not None
    text = f"{rate:.1%} leave before the last layer (limit {limit:.0%})"
    if rate < limit:
        return Finding(rule, "alert", rate, limit, f"{text}; the checks cost more than the exits save")
    return Finding(rule, "fine", rate, limit, text)


def _score_shift(current: Window, limits: MonitoringSettings) -> Finding:
    rule, limit, shift = "score_shift", limits.max_score_shift, current.score_shift
    if shift is None:
        return Finding(rule, "not judged", None, limit, "the model has no calibration that records its scores")
    if (counted := int(sum(current.scores))) < limits.min_sentences:
        few = f"{counted} sentences with a calibrated score, {limits.min_sentences} are needed"
        return Finding(rule, "not judged", None, limit, few)
    text = f"scores against the calibration's: population stability index {shift:.3f} (limit {limit:g})"
    return _judge(rule, shift, limit, text, "; calibrate on sentences like these, or serve with strategy full")


def _shares(rules: Mapping[str, int]) -> dict[str, int]:
    """Whole percents, so that a handful of requests makes no difference."""
    total = sum(rules.values())
    shares = {rule: round(100 * count / total) for rule, count in rules.items()}
    return {rule: share for rule, share in shares.items() if share}


def _list(rules: Mapping[str, int]) -> str:
    return " and ".join(f"{share} % {rule}" for rule, share in _shares(rules).items()) or "none"


def _judge(rule: str, value: float, limit: float, text: str, advice: str = "") -> Finding:
    # A share that only rounding puts above its limit is not above it.
    above = value - limit > 1e-9
    return Finding(rule, "alert" if above else "fine", value, limit, text + (advice if above else ""))


def _too_few(limits: MonitoringSettings, *windows: Window) -> str:
    few = min(window.sentences for window in windows)
    return f"{few} sentences, {limits.min_sentences} are needed" if few < limits.min_sentences else ""
