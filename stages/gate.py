"""Judges one checkpoint by its evidence.

    python stages/gate.py --variant leap --seed 1

Reads evaluations/<variant>-<seed>/ and those of the variants it is compared with; writes
verdicts/<variant>-<seed>.json, and the main figures as metrics/<variant>-<seed>.json for `dvc metrics show`.
A refusal is a result: the exit code is 0. `promote` registers what passes.
"""

import logging
from typing import Any

from leap.core.files import write_json, write_with_checksum
from leap.core.stage import Run, stage
from leap.evidence.rivals import against_rivals
from leap.gate.judgement import judge_checkpoint
from leap.gate.metrics import main_figures
from leap.gate.verdict import lines

logger = logging.getLogger("leap.gate")


@stage("variant", "seed")
def gate(run: Run) -> dict[str, Any]:
    evidence, verdict = judge_checkpoint(run.settings, run.variant, run.seed)
    verdict["rivals"] = against_rivals(run.settings, run.variant, run.seed)
    for line in lines(verdict):
        logger.info(line)
    write_with_checksum(run.checkpoint.verdict, verdict)
    write_json(run.checkpoint.metrics, main_figures(evidence, run.settings, verdict["passed"]))
    return {"passed": verdict["passed"]}
