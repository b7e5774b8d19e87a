"""MLflow and the registry brought into agreement with the files: what the stage `promote` and `leap track` do."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of_json, write_json
from leap.core.project import Checkpoint, Project
from leap.core.settings import Settings
from leap.core.source_code import PACKAGE
from leap.evidence.evidence_file import model_hash, read_evidence
from leap.gate.metrics import data_behind
from leap.registry.card import model_card
from leap.registry.checkpoint_run import log_checkpoint
from leap.registry.project_runs import log_data, log_report, log_studies
from leap.registry.versions import Standing, note_refusal, promote
from leap.tracking.store import ARTIFACTS, StoreError, Tracking, local_database, project_root

logger = logging.getLogger(__name__)

# What promote reads: when none of these files and nothing in the store changed, there is nothing to do.
READ = (
    *("data/extract.json", "data/validation.json", "data/teacher/manifest.json"),
    *("models", "evaluations", "verdicts", "studies", "reports/report.html"),
)
STATE = Path("mlruns/promoted.json")


def synchronise(settings: Settings, project: Project, required: bool = False) -> dict[str, Any]:
    """Log every run that the project's files hold, and register every checkpoint that passes.

    Idempotent: what MLflow has already is not sent again. An experiment of DVC is logged only, unless
    `tracking.promote` is "always".

    Args:
        settings: name the store, the variants and the seeds.
        project: its files.
        required: whether a store that cannot be reached is an error, also where nothing must be registered.

    Returns:
        The standing of every registered checkpoint by its name.

    Raises:
        UserError: the store cannot be reached, and a checkpoint passes.
    """
    if not settings.tracking.enabled:
        if required:
            raise UserError("tracking.enabled is false: set it to true for what needs MLflow")
        logger.warning("nothing is logged or registered: tracking.enabled is false")
        return {}
    state = _State(settings, project)
    last = state.last()
    if last is not None:
        return last
    checkpoints = [project.checkpoint(variant, seed) for variant in settings.variants for seed in settings.seeds]
    verdicts = [_verdict(checkpoint) for checkpoint in checkpoints if checkpoint.model.is_dir()]
    promoting = promotes(settings)
    passing = promoting and any(item.content and _counts(item.content) for item in verdicts)
    tracking = Tracking.open(settings, required=required or passing)
    if tracking.client is None:
        return {}
    standings: dict[str, Any] = {}
    try:
        # Refusals first: a champion that is refused now gives way to the next that passes.
        for item in sorted(verdicts, key=lambda item: bool(item.content and _counts(item.content))):
            standing = _agree(tracking, item, promoting)
            if standing is not None:
                standings[item.checkpoint.name] = asdict(standing)
        with tracking.locked("runs"):
            log_data(tracking, project)
            log_report(tracking, project)
            log_studies(tracking, project)
    except StoreError as error:
        message = f"MLflow: {error}; `dvc repro` or `leap track` logs what is missing"
        if required or passing:
            raise UserError(message) from None
        logger.warning("%s", message)
        return {"registry": standings}
    outcome = {"registry": standings, "experiment": tracking.experiment}
    state.save(outcome)
    return outcome


def promotes(settings: Settings) -> bool:
    """Return whether what passes is registered: an experiment of DVC is not, unless the settings say so."""
    if settings.tracking.promote == "auto":
        return "DVC_EXP_BASELINE_REV" not in os.environ
    return settings.tracking.promote == "always"


@dataclass(frozen=True)
class _Judged:
    checkpoint: Checkpoint
    content: dict[str, Any] | None


def _verdict(checkpoint: Checkpoint) -> _Judged:
    content = read_json(checkpoint.verdict, "dvc repro") if checkpoint.verdict.is_file() else None
    current = content is not None and content.get("model") == model_hash(checkpoint.model)
    return _Judged(checkpoint, content if current else None)


def _counts(verdict: dict[str, Any]) -> bool:
    return bool(verdict["passed"]) and verdict["role"] is None


def _agree(tracking: Tracking, item: _Judged, promoting: bool) -> Standing | None:
    if item.content is None or not promoting:
        with tracking.locked("runs"):
            log_checkpoint(tracking, item.checkpoint)
        return None
    return register(tracking, item.checkpoint, item.content)


def register(tracking: Tracking, checkpoint: Checkpoint, verdict: dict[str, Any]) -> Standing | None:
    """Log a checkpoint, and register it if it passes; else note its refusal where it is registered already.

    Raises:
        UserError: the verdict is of another model than there is now, or the registry cannot be reached.
        StoreError: its run cannot be logged.
    """
    settings, root = tracking.settings, checkpoint.root
    place = (checkpoint.variant, checkpoint.seed, settings, root / "evaluations", root / "models")
    evidence = read_evidence(*place)
    if verdict["model"] != evidence.model:
        raise UserError(
            f"{checkpoint.verdict} judges another model than {checkpoint.model}: `dvc repro` judges again"
        )
    with tracking.locked("runs"):
        logged = log_checkpoint(tracking, checkpoint, model_card(settings, evidence, verdict))
    data = data_behind(verdict["primary_metric"]["metric"], evidence, settings.evaluation.primary_set)
    if _counts(verdict):
        placed = promote(tracking, verdict, logged, data)
        logger.info("registry: version %d %s: %s", placed.version, placed.aliases, placed.decision)
        return placed
    noted = note_refusal(tracking, verdict, logged, data)
    if noted and noted.aliases:
        logger.warning("version %d is refused now but has the alias %s", noted.version, ", ".join(noted.aliases))
    return noted


class _State:
    """The files that the last call read and left: the next one need not import MLflow to find nothing to do.

    Only for a store in a file, and only while neither the files nor the store have changed: any doubt, such as
    another time stamp, leads to a full call.
    """

    def __init__(self, settings: Settings, project: Project) -> None:
        self._database = local_database(settings)
        # An experiment of DVC in a copy of the project leaves no state: the next call is the project's.
        here = project_root() == Path.cwd()
        self._path = project_root() / STATE if self._database and here else None
        read = [*(project.root / name for name in READ), PACKAGE]
        asked = sha256_of_json([settings.model_dump(mode="json"), promotes(settings)])
        self._asked = [asked, _fingerprint(read)] if self._path else []

    def last(self) -> dict[str, Any] | None:
        """Return what the last call returned if nothing has changed since."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            last = read_json(self._path, "dvc repro")
            return last["result"] if last["seen"] == [*self._asked, self._stored()] else None
        except (UserError, KeyError, TypeError):
            return None

    def save(self, result: dict[str, Any]) -> None:
        if self._path is not None:
            write_json(self._path, {"seen": [*self._asked, self._stored()], "result": result})

    def _stored(self) -> str:
        assert self._database is not None
        log = self._database.with_name(f"{self._database.name}-wal")
        return _fingerprint([self._database, log, project_root() / ARTIFACTS])


def _fingerprint(places: Iterable[Path]) -> str:
    """Return the sha256 of the size, time and inode of all files, by which git and DVC see that one changed."""
    files: list[Path] = []
    for place in places:
        inside = place.rglob("*") if place.is_dir() else [place]
        files += sorted(path for path in inside if "__pycache__" not in path.parts)
    return sha256_of_json([(str(path), *_identity(path)) for path in files])


def _identity(path: Path) -> tuple[int, ...]:
    try:
        seen = path.stat()
    except FileNotFoundError:
        return ()
    return () if path.is_dir() else (seen.st_size, seen.st_mtime_ns, seen.st_ino)
