"""One study from its settings to its content: its models, what each gives, and the seeds together."""

import logging
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import read_json
from leap.core.settings import Settings
from leap.data.pairs import Pairs, read_pairs
from leap.evaluate.strategies import own_strategies
from leap.evidence.evidence_file import checkpoint_hash, data_hashes
from leap.evidence.spread import over_seeds
from leap.exits import ExitRule, LeapEncoder
from leap.studies.figures import extra_rows, measure_student, usual_figures
from leap.studies.students import Student, students
from leap.studies.weights_study import weights_rows

log = logging.getLogger(__name__)

FIGURES = (
    *("spearman_full", "spearman_exit", "spearman_truncated", "expected_layers", "layer_reduction"),
    *("exit_rate", "similarity", "nn_at_10"),
)


def run_study(settings: Settings, study: str) -> dict[str, Any]:
    """Train and measure the models of a study; return the content of studies/<study>.json (docs/architecture.md).

    Raises:
        UserError: there is no such study, data is missing, or a model cannot be had.
    """
    block, chosen = settings.study(study), settings.evaluation
    data = Path(f"data/similarity/{chosen.primary_set}.parquet")
    pairs = read_pairs(data)
    variants: dict[str, Any] = {}
    device = "cpu"
    models, left_out = students(settings, study)
    for student in models:
        model = LeapEncoder(student.model, chosen.device)
        device = model.device.type
        variant = variants.setdefault(
            student.variant.name, {"description": student.variant.description, "seeds": {}}
        )
        variant["seeds"][str(student.seed)] = one_student(settings, study, student, model, pairs)
    for variant in variants.values():
        seeds = list(variant["seeds"].values())
        variant["over_seeds"] = {name: over_seeds([seed[name] for seed in seeds]) for name in FIGURES}
    return {
        "study": study,
        "description": block.description,
        "profile": settings.profile,
        "set": chosen.primary_set,
        "settings": block.model_dump(mode="json", exclude={"description"}),
        "data": data_hashes([data]),
        "environment": environment(device),
        "variants": variants,
        "left_out": left_out,
    }


def one_student(
    settings: Settings, study: str, student: Student, model: LeapEncoder, pairs: Pairs
) -> dict[str, Any]:
    """Measure one model: where it is from, the usual figures, and what the study asks in addition."""
    chosen, block = settings.evaluation, settings.study(study)
    rule = ExitRule(**student.variant.exit.rule())
    try:
        rule.check_depth(model.depth)
    except ValueError as error:
        raise UserError(f"studies.{study}.variants.{student.variant.name}.exit: {error}") from None
    taken = measure_student(model, pairs, chosen.nn_k, chosen.batch_size)
    training = read_json(student.place.training / "training.json", f"make study-{study}")
    figures = {
        "checkpoint": checkpoint_hash(student.model),
        "training": {key: training.get(key) for key in ("steps", "seconds", "loss")},
        **usual_figures(taken, rule),
        **extra_rows(taken, rule, block, own_strategies(model, rule)),
    }
    if block.weights:
        figures["weights"] = weights_rows(model, pairs, rule, chosen, settings.latency, block.weights)
    log.info(
        "%s, %s seed %d: Spearman %.3f full, %.3f exited at %.2f of %d layers",
        *(study, student.variant.name, student.seed, figures["spearman_full"], figures["spearman_exit"]),
        *(figures["expected_layers"], figures["depth"]),
    )
    return figures


def metrics(content: dict[str, Any]) -> dict[str, Any]:
    """Return a study's main figures by variant, for `dvc metrics show` and `dvc metrics diff`."""
    return {
        name: {figure: variant["over_seeds"][figure]["mean"] for figure in FIGURES}
        for name, variant in content["variants"].items()
    }
