"""The gate's checks: each a metric of the evidence against one bound, with a reason in words.

Missing or not finite fails, and so does an interval that is asked for and not there. A comparison of a
variant with itself (the baseline's drop against the baseline) is not applicable: it passes with value null,
and its reason says so.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from leap.core.environment import hardware
from leap.core.settings.gate import Check, GateSettings
from leap.evidence.evidence_file import Evidence
from leap.gate.metrics import Measured, Rivals, expand, measure, scope

Bound = tuple[str, str, Callable[[float, float], bool]]

# setting: (sign, what a failing value is, comparison)
BOUNDS: dict[str, Bound] = {
    "above": (">", "is not above", operator.gt),
    "at_least": (">=", "is below", operator.ge),
    "below": ("<", "is not below", operator.lt),
    "at_most": ("<=", "is above", operator.le),
}
FALSE_CONVERGENCE = "false convergence: consecutive layers agree, yet are far from the final one"


@dataclass(frozen=True)
class CheckResult:
    name: str
    metric: str
    scope: str
    bound: str
    threshold: float
    value: float | None
    n: int | None
    interval: tuple[float, float] | None
    severity: str
    passed: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the form of the verdict file; a bound of the interval that is not finite becomes null."""
        interval = self.interval and [bound if math.isfinite(bound) else None for bound in self.interval]
        return {**asdict(self), "interval": interval}


def run_checks(
    gate: GateSettings, evidence: Evidence, primary_set: str, rivals: Rivals, targets: Sequence[str]
) -> list[CheckResult]:
    """Run every check of the settings; a star gives one result a data set, named `check.set`.

    `targets` is the hardware on which latency counts; a figure of another machine fails. The rest as of `measure`.
    """
    results = []
    named = {check.metric for check in gate.checks.values()}
    for name, check in gate.checks.items():
        for metric in expand(check.metric, evidence, named):
            starred = metric != check.metric
            label = f"{name}.{metric.split('.')[1]}" if starred else name
            measured = measure(metric, evidence, primary_set, rivals)
            if metric.startswith("latency."):
                measured = _on_target(measured, evidence, targets)
            where = scope(metric, primary_set)
            results.append(judge(label, check, measured, where, _explanation(metric, evidence)))
    return results


def passes(results: list[CheckResult]) -> bool:
    return all(result.passed for result in results if result.severity == "refuse")


def judge(name: str, check: Check, measured: Measured, where: str, explanation: str | None = None) -> CheckResult:
    """Judge one measured metric by one check; null fails unless the check is not applicable.

    `where` is the metric's scope, in words; `explanation` is added to the reason of a failure.
    """
    key = next(key for key in BOUNDS if getattr(check, key) is not None)
    threshold: float = getattr(check, key)
    sign, failing, holds = BOUNDS[key]
    judged, what = measured.value, measured.metric
    fault = measured.fault
    if check.by_interval and measured.interval is None and measured.value is not None:
        fault = fault or "its 95 % interval, by which it is judged, is missing in the evidence"
    if measured.interval is not None and measured.value is not None:
        low, high = measured.interval
        slack = 1e-6 * max(1.0, abs(measured.value))
        if measured.value < low - slack or measured.value > high + slack:
            fault = fault or f"it lies outside its own 95 % interval, {low:.4g} to {high:.4g}"
    if check.by_interval and measured.interval is not None and measured.value is not None:
        # The bound that is worse for the model: the low one where more is better, else the high one.
        end = 0 if key in ("above", "at_least") else 1
        judged = measured.interval[end]
        what += f" {measured.value:.4g}: {('low', 'high')[end]} end of its 95 % interval"
    passed, reason = _verdict(what, judged, threshold, sign, failing, holds)
    if not passed and explanation:
        reason += f": {explanation}"
    if measured.note:
        reason += f" ({measured.note})"
    if fault is not None:
        value = "missing" if measured.value is None else f"{measured.value:.4g}"
        passed, reason = False, f"{measured.metric} {value}: {fault}"
    if measured.not_applicable is not None:
        passed, reason = True, f"{measured.metric} is not applicable: {measured.not_applicable}"
    return CheckResult(
        name=name,
        metric=measured.metric,
        scope=where,
        bound=f"{sign} {threshold:g}",
        threshold=threshold,
        value=measured.value,
        n=measured.n,
        interval=measured.interval,
        severity=check.severity,
        passed=passed,
        reason=reason,
    )


def _verdict(
    what: str,
    judged: float | None,
    threshold: float,
    sign: str,
    failing: str,
    holds: Callable[[float, float], bool],
) -> tuple[bool, str]:
    if judged is None:
        return False, f"{what} is missing or not a finite number in the evidence"
    if not math.isfinite(judged):
        return False, f"{what} is not a finite number"
    value, limit = _told_apart(judged, threshold)
    if holds(judged, threshold):
        return True, f"{what} {value} {sign} {limit}"
    return False, f"{what} {value} {failing} {limit}"


def _told_apart(value: float, threshold: float) -> tuple[str, str]:
    """Both numbers with as few digits as tell them apart, so that no reason says "0.94 is below 0.94"."""
    if value == threshold:
        return f"{value:g}", f"{threshold:g}"
    for digits in (4, 8, 17):
        texts = f"{value:.{digits}g}", f"{threshold:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts[0], f"{threshold:g}" if f"{threshold:g}" != texts[0] else texts[1]


def _on_target(measured: Measured, evidence: Evidence, targets: Sequence[str]) -> Measured:
    """Latency is a machine's: a figure of another one says nothing here."""
    place = hardware((evidence.latency or {}).get("environment", {}))
    if measured.value is None or place in targets:
        return measured
    wanted = " or ".join(targets) or "a CUDA card of this machine, which has none"
    return replace(measured, fault=f"measured on {place}, not on the target hardware, {wanted}")


def _explanation(metric: str, evidence: Evidence) -> str | None:
    verdict = str((evidence.diagnose or {}).get("verdict", ""))
    if metric in ("exit.similarity", "exit.nn_at_10") and "false convergence" in verdict:
        return FALSE_CONVERGENCE
    return None
