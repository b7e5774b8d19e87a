"""MLflow and the registry brought into agreement with the files: what the stage `promote` and `leap track` do."""

import logging
from typing import Any

from leap.core.errors import UserError
from leap.core.files import read_json
from leap.core.project import Checkpoint, Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import read_evidence
from leap.gate.metrics import data_behind
from leap.registry.card import model_card
from leap.registry.checkpoint_run import log_checkpoint
from leap.registry.report_run import log_report
from leap.registry.versions import Standing, note_refusal, promote
from leap.tracking import Tracking

logger = logging.getLogger(__name__)


def synchronise(settings: Settings, project: Project) -> dict[str, Any]:
    """Log every checkpoint's run and the report, and register every checkpoint that passes.

    Idempotent: what MLflow has already is not sent again. A store that cannot be reached costs a warning, unless
    a checkpoint passes and must be registered.

    Returns:
        The standing of every registered checkpoint by its name.

    Raises:
        UserError: the registry cannot be reached, and a checkpoint passes.
    """
    if not settings.tracking.enabled:
        logger.warning("nothing is logged or registered: tracking.enabled is false")
        return {}
    standings: dict[str, Any] = {}
    for variant in settings.variants:
        for seed in settings.seeds:
            checkpoint = project.checkpoint(variant, seed)
            if not checkpoint.model.is_dir():
                continue
            log_checkpoint(settings, variant, seed)
            if checkpoint.verdict.is_file():
                standing = register(settings, checkpoint)
                if standing is not None:
                    standings[checkpoint.name] = standing.as_json()
                    log_checkpoint(settings, variant, seed)
    if (project.reports / "report.html").is_file():
        log_report(settings, project.reports)
    return {"registry": standings}


def register(settings: Settings, checkpoint: Checkpoint) -> Standing | None:
    """Register a checkpoint that passes, or note its refusal where it is registered already.

    Raises:
        UserError: the registry cannot be reached, and the checkpoint passes.
    """
    verdict = read_json(checkpoint.verdict, "dvc repro")
    evidence = read_evidence(checkpoint.variant, checkpoint.seed, settings)
    if verdict["checkpoint"] != evidence.checkpoint:
        raise UserError(f"{checkpoint.verdict} judges another model than {checkpoint.model}: `dvc repro`")
    wanted = verdict["passed"] and verdict["role"] is None
    tracking = Tracking.open(settings, required=wanted)
    data = data_behind(verdict["primary_metric"]["metric"], evidence, settings.evaluation.primary_set)
    if wanted:
        placed = promote(tracking, verdict, data, card=model_card(settings, evidence, verdict))
        logger.info("registry: version %d %s: %s", placed.version, placed.aliases, placed.decision)
        return placed
    before = note_refusal(tracking, verdict, data) if tracking.client else None
    if before and before.aliases:
        logger.warning("version %d is refused now but has the alias %s", before.version, ", ".join(before.aliases))
    return before
