"""Writes the model that is judged and served: a student with its exit rule, exit heads and tested thresholds.

    python stages/calibrate.py --variant leap --seed 1

Reads students/<variant>-<seed>/, data/sentences.parquet (the heads are fitted on it) and data/held_out.parquet
(the thresholds are tested on it); writes models/<variant>-<seed>/. A changed threshold starts here.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.sentence_file import read_sentences
from leap.exits.calibrate.finish_model import finish_model


@stage("variant", "seed")
def calibrate(run: Run) -> dict[str, Any]:
    variant = run.settings.variant(run.variant)
    text, held_out = (read_sentences(path) for path in (run.project.sentences, run.project.held_out))
    found = finish_model(run.checkpoint.student, run.checkpoint.model, variant, text, held_out)
    return {"rule": variant.exit.rule(), "expected_layers": found and found.report.get("expected_layers")}
