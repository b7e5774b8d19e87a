"""A verdict into the registry and onto disk: what the gate stage and `leap promote` end with."""

import logging
from pathlib import Path
from typing import Any

from leap.evaluation.evidence import Evidence
from leap.exports.card import model_card
from leap.files import write_sealed
from leap.gate.metrics import data_behind
from leap.gate.registry import note_refusal, promote
from leap.settings import Settings
from leap.tracking import Tracking

logger = logging.getLogger(__name__)

VERDICTS = Path("verdicts")


def register(settings: Settings, evidence: Evidence, verdict: dict[str, Any]) -> dict[str, Any]:
    """Registers a checkpoint that passes, or notes its refusal where it is registered; writes the verdict.

    Where `tracking.enabled` is false it only writes the verdict.

    Args:
        settings: name the registry.
        evidence: what the verdict rests on.
        verdict: as `leap.gate.verdict.verdict_of` makes it.

    Returns:
        The verdict with what the registry made of it.

    Raises:
        UserError: the registry cannot be reached, and the checkpoint passes.
    """
    wanted = verdict["passed"] and verdict["role"] is None
    if wanted and not settings.tracking.enabled:
        logger.warning("it passes, and is not registered: tracking.enabled is false")
        wanted = False
    tracking = Tracking.open(settings, required=wanted)
    data = data_behind(verdict["primary_metric"]["metric"], evidence, settings.evaluation.primary_set)
    if wanted:
        placed = promote(tracking, verdict, data, card=model_card(settings, evidence, verdict))
        logger.info("registry: version %d %s: %s", placed.version, placed.aliases, placed.decision)
        done = {**verdict, "registry": placed.as_json()}
    else:
        before = note_refusal(tracking, verdict, data) if tracking.client else None
        if before and before.aliases:
            logger.warning(
                "version %d is refused now but has the alias %s", before.version, ", ".join(before.aliases)
            )
        done = {**verdict, "registry": before and before.as_json()}
    write_sealed(VERDICTS / f"{verdict['variant']}-{verdict['seed']}.json", done)
    return done
