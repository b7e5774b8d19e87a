"""The verdict file: every check of one checkpoint."""

from typing import Any

from leap.core.environment import hardware, this_hardware
from leap.core.grid import Grid
from leap.core.settings import Settings
from leap.evidence.evidence_file import Evidence
from leap.gate.binding import list_bindings
from leap.gate.checks import passes, run_checks
from leap.gate.metrics import Rivals, measure


def verdict_of(settings: Settings, evidence: Evidence, rivals: Rivals) -> dict[str, Any]:
    """Return the verdict on one checkpoint, in the form of docs/formats.md.

    Nothing in it differs between two runs on the same evidence, settings and hardware.
    """
    targets = target_hardware(settings, evidence)
    primary_set = settings.evaluation.primary_set
    results = run_checks(settings.gate, evidence, primary_set, rivals, targets)
    metric = settings.gate.primary_metric
    return {
        "variant": evidence.variant,
        "seed": evidence.seed,
        "checkpoint": evidence.checkpoint,
        "model": evidence.model,
        "role": role(settings, evidence.variant),
        "passed": passes(results),
        "primary_metric": {"metric": metric, "value": measure(metric, evidence, primary_set, rivals).value},
        "checks": [result.as_json() for result in results],
        "hardware": {"measured_on": hardware((evidence.latency or {}).get("environment", {})), "target": targets},
        "bound_to": list_bindings(evidence),
    }


def target_hardware(settings: Settings, evidence: Evidence) -> list[str]:
    """Return the hardware on which latency counts: the one of the settings, else this machine."""
    if settings.gate.target_hardware is not None:
        return [settings.gate.target_hardware]
    return this_hardware("card" in (evidence.latency or {}).get("environment", {}))


def role(settings: Settings, variant: str) -> str | None:
    """Return `baseline` or `fixed_depth` for the variants to compare with, which are never promoted; else null."""
    roles = [name for name in ("baseline", "fixed_depth") if getattr(settings.gate, name) == variant]
    return roles[0] if roles else None


def table(verdict: dict[str, Any]) -> str:
    """Put every check into columns, for a terminal."""
    rows = [
        (
            mark(check),
            check["name"],
            check["scope"],
            _short(check["value"]),
            "-" if check["interval"] is None else " to ".join(map(_short, check["interval"])),
            _short(check["n"]),
            check["bound"],
            check["severity"],
        )
        for check in verdict["checks"]
    ]
    return Grid(("", "check", "scope", "value", "interval", "n", "bound", "severity"), rows, words=8).text()


def lines(verdict: dict[str, Any]) -> list[str]:
    """Put the verdict into words: a line a check, then the whole."""
    name = f"{verdict['variant']}-{verdict['seed']}"
    width = max(len(check["name"]) for check in verdict["checks"])
    shown = [f"{mark(check)} {check['name']:<{width}}  {check['reason']}" for check in verdict["checks"]]
    failed = [check["name"] for check in verdict["checks"] if not check["passed"]]
    refusing = [check["name"] for check in verdict["checks"] if refuses(check)]
    outcome = "passes" if verdict["passed"] else f"is refused by {', '.join(refusing)}"
    if verdict["passed"] and failed:
        outcome += f", with a warning from {', '.join(failed)}"
    if verdict["passed"] and verdict["role"]:
        outcome += f"; as gate.{verdict['role']} it is never promoted"
    return [*shown, f"{name} {outcome}"]


def mark(check: dict[str, Any]) -> str:
    """Return a tick, a cross, or "!" for a failed check that only warns."""
    if check["passed"]:
        return "\N{CHECK MARK}"
    return "\N{BALLOT X}" if refuses(check) else "!"


def refuses(check: dict[str, Any]) -> bool:
    """Tell whether this check alone refuses the model."""
    return not check["passed"] and check["severity"] == "refuse"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
