"""Judges one checkpoint by its evidence, and registers it if it passes.

    python stages/gate.py --variant leap --seed 1

Reads evaluations/<variant>-<seed>/ and those of the variants it is compared with; writes
verdicts/<variant>-<seed>.json. A refusal is a result: the exit code is 0.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

from leap.evaluation.evidence import Evidence, read_evidence
from leap.evaluation.rivals import against_rivals
from leap.files import write_json
from leap.gate.metrics import data_behind
from leap.gate.registry import promote, standing
from leap.gate.verdict import lines, verdict_of
from leap.settings import Settings
from leap.stage import run
from leap.tracking import Tracking, log_checkpoint

logger = logging.getLogger("leap.gate")


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed = arguments.variant, arguments.seed
    evidence = read_evidence(variant, seed, settings)
    names = {"baseline": settings.gate.baseline, "fixed_depth": settings.gate.fixed_depth}
    rivals = {
        role: evidence if name == variant else read_evidence(name, seed, settings)
        for role, name in names.items()
    }
    verdict = verdict_of(settings, evidence, rivals)
    verdict["rivals"] = against_rivals(settings, variant, seed)
    for line in lines(verdict):
        logger.info(line)

    # The run comes first, so that the registered version can name it.
    log_checkpoint(settings, variant, seed)
    verdict["registry"] = register(settings, evidence, verdict)
    target = Path("verdicts") / f"{variant}-{seed}.json"
    write_json(target, verdict)
    log_checkpoint(settings, variant, seed)
    return {
        "stage": "gate",
        "variant": variant,
        "seed": seed,
        "passed": verdict["passed"],
        "failed": [check["name"] for check in verdict["checks"] if not check["passed"]],
        "registry": verdict["registry"],
    }


def register(settings: Settings, evidence: Evidence, verdict: dict[str, Any]) -> dict[str, Any] | None:
    """What the registry does with the model, for the verdict file."""
    tracking = Tracking.open(settings, required=bool(verdict["passed"]))
    if verdict["passed"]:
        data = data_behind(verdict["primary_metric"]["metric"], evidence, settings.evaluation.primary_set)
        placed = promote(tracking, verdict, data)
        logger.info("registry: version %d %s: %s", placed.version, placed.aliases, placed.decision)
        return placed.as_json()
    before = tracking.client and standing(tracking, verdict["checkpoint"])
    if before and before.aliases:
        logger.warning(
            "version %d is refused now but has the alias %s", before.version, ", ".join(before.aliases)
        )
    return before.as_json() if before else None


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))
