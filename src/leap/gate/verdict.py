"""The verdict file: every check of one checkpoint, and what the registry did with it."""

from typing import Any

from leap.evaluation.evidence import Evidence
from leap.gate.checks import passes, run_checks
from leap.gate.metrics import Rivals, measure
from leap.settings import Settings


def verdict_of(settings: Settings, evidence: Evidence, rivals: Rivals) -> dict[str, Any]:
    """The verdict on one checkpoint, in the form of docs/architecture.md; `registry` is null as yet.

    Nothing in it differs between two runs on the same evidence and settings.
    """
    primary_set = settings.evaluation.primary_set
    results = run_checks(settings.gate, evidence, primary_set, rivals)
    metric = settings.gate.primary_metric
    return {
        "variant": evidence.variant,
        "seed": evidence.seed,
        "checkpoint": evidence.checkpoint,
        "passed": passes(results),
        "primary_metric": {
            "metric": metric,
            "value": measure(metric, evidence, primary_set, rivals).value,
        },
        "checks": [result.as_json() for result in results],
        "registry": None,
    }


def lines(verdict: dict[str, Any]) -> list[str]:
    """The verdict for a person: a line a check, then the whole."""
    name = f"{verdict['variant']}-{verdict['seed']}"
    width = max(len(check["name"]) for check in verdict["checks"])
    shown = [f"{mark(check)} {check['name']:<{width}}  {check['reason']}" for check in verdict["checks"]]
    failed = [check["name"] for check in verdict["checks"] if not check["passed"]]
    refusing = [check["name"] for check in verdict["checks"] if refuses(check)]
    outcome = "passes" if verdict["passed"] else f"is refused by {', '.join(refusing)}"
    if verdict["passed"] and failed:
        outcome += f", with a warning from {', '.join(failed)}"
    return [*shown, f"{name} {outcome}"]


def mark(check: dict[str, Any]) -> str:
    """A tick, a cross, or "!" for a failed check that only warns."""
    if check["passed"]:
        return "\N{CHECK MARK}"
    return "\N{BALLOT X}" if refuses(check) else "!"


def refuses(check: dict[str, Any]) -> bool:
    """Whether this check alone keeps the model out."""
    return not check["passed"] and check["severity"] == "refuse"
