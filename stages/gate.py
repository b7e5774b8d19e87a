"""Judges one checkpoint by its evidence, and registers it if it passes.

    python stages/gate.py --variant leap --seed 1

Reads evaluations/<variant>-<seed>/ and those of the variants it is compared with; writes
verdicts/<variant>-<seed>.json. A refusal is a result: the exit code is 0.
"""

import argparse
import logging
from typing import Any

from leap.evaluation.rivals import against_rivals
from leap.gate.judgement import judge_checkpoint
from leap.gate.promotion import register
from leap.gate.verdict import lines
from leap.settings import Settings
from leap.stage import run
from leap.tracking import log_checkpoint

logger = logging.getLogger("leap.gate")


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed = arguments.variant, arguments.seed
    evidence, verdict = judge_checkpoint(settings, variant, seed)
    verdict["rivals"] = against_rivals(settings, variant, seed)
    for line in lines(verdict):
        logger.info(line)
    # The run comes first, so that the registered version can name it.
    log_checkpoint(settings, variant, seed)
    verdict = register(settings, evidence, verdict)
    log_checkpoint(settings, variant, seed)
    return {
        "stage": "gate",
        "variant": variant,
        "seed": seed,
        "passed": verdict["passed"],
        "failed": [check["name"] for check in verdict["checks"] if not check["passed"]],
        "registry": verdict["registry"],
    }


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))
