"""One MLflow run a checkpoint, brought up to date from the project's files."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leap.core.colours import COLOURS
from leap.core.environment import environment
from leap.core.files import read_json, sha256_of
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash, data_hashes, evidence_files
from leap.registry.run_content import evidence_numbers
from leap.tracking.entities import METRICS_A_CALL, Number, flat, history_numbers, metric, params_of
from leap.tracking.store import Tracking, failures, first_line, one_at_a_time
from leap.tracking.training_run import identity

if TYPE_CHECKING:
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

MODELS = Path("models")
EVALUATIONS = Path("evaluations")
VERDICTS = Path("verdicts")
SENTENCES = Path("data/sentences.parquet")


def log_checkpoint(settings: Settings, variant: str, seed: int) -> bool:
    """Brings the run of a checkpoint up to date: settings, history, evidence, verdict, the model folder.

    Logs what MLflow does not have yet, by the hash of each file, and nothing twice. Works from the files
    alone, so a checkpoint restored from DVC's cache gets its run too. A store that cannot be reached costs
    a warning.

    Returns:
        Whether MLflow now has everything.

    Raises:
        UserError: the checkpoint is missing.
    """
    checkpoint = checkpoint_hash(MODELS / f"{variant}-{seed}")
    tracking = Tracking.open(settings)
    if tracking.client is None:
        return False
    try:
        with one_at_a_time("runs"):
            _Sync(tracking, variant, seed, checkpoint).everything()
    except failures() as error:
        logger.warning("tracking: %s; the next stage or `leap track` logs what is missing", first_line(error))
        return False
    return True


class _Sync:
    """The run of one checkpoint; its `leap.logged.*` tags hold the hashes of the files it has."""

    def __init__(self, tracking: Tracking, variant: str, seed: int, checkpoint: str) -> None:
        assert tracking.client is not None
        self._client = tracking.client
        self._tracking = tracking
        self._settings = tracking.settings
        self._variant, self._seed, self._checkpoint = variant, seed, checkpoint
        self._folder = f"{variant}-{seed}"
        self._identity = identity(variant, seed, checkpoint)
        run = self._found() or self._created()
        self._run: str = run.info.run_id
        self._tags = dict(run.data.tags)
        if run.info.status != "FINISHED":
            # The trainer could name its checkpoint but not end its run.
            self._client.set_terminated(self._run, "FINISHED")

    def everything(self) -> None:
        """Logs what is new."""
        self._log_settings()
        history = EVALUATIONS / self._folder / "training" / "history.jsonl"
        if history.is_file() and self._is_new("history", sha256_of(history)):
            self._log_numbers(self._missing(history_numbers(history)))
            self._done("history", sha256_of(history))
        for name, path in evidence_files(self._variant, self._seed, self._settings, EVALUATIONS).items():
            self._log_file(name, path, f"evidence/{name}")
        self._log_file("verdict", VERDICTS / f"{self._folder}.json", "verdict/")
        if self._is_new("checkpoint", self._checkpoint):
            self._client.log_artifacts(self._run, str(MODELS / self._folder), "checkpoint")
            self._done("checkpoint", self._checkpoint)

    def _found(self) -> Run | None:
        found = self._tracking.find(self._identity)
        return found[0] if found else None

    def _created(self) -> Run:
        """A run for a checkpoint that was trained while nobody listened, or restored from a cache."""
        run = self._tracking.create_run(self._folder, self._identity)
        self._client.set_terminated(run.info.run_id, "FINISHED")
        return run

    def _log_settings(self) -> None:
        content = self._settings.variant(self._variant).model_dump(mode="json")
        tags = {"leap.profile": self._settings.profile}
        # The parameters say how it was trained and cannot change; the exit rule can, so its present is a tag.
        tags |= flat({"exit": content["exit"]})
        if "leap.logged.settings" not in self._tags:
            self._log_params(params_of(content))
            where = environment("cpu")
            tags |= {
                "leap.logged.settings": "yes",
                "mlflow.runColor": COLOURS[list(self._settings.variants).index(self._variant) % len(COLOURS)],
                "mlflow.note.content": self._settings.variants[self._variant].description,
            }
            if where["commit"]:
                tags["mlflow.source.git.commit"] = where["commit"]
            if SENTENCES.is_file():
                tags |= {f"leap.data.{name}": value for name, value in data_hashes([SENTENCES]).items()}
        self._set_tags(tags)

    def _log_params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self._run).data.params
        new = [Param(name, value) for name, value in params.items() if name not in known]
        for start in range(0, len(new), 100):
            self._client.log_batch(self._run, params=new[start : start + 100])

    def _log_file(self, name: str, path: Path, artifact: str) -> None:
        """One JSON file: its numbers as metrics, its data as tags, itself as an artifact."""
        if not path.is_file():
            return
        digest = sha256_of(path)
        if not self._is_new(name, digest):
            return
        content = read_json(path, "dvc repro")
        if content.get("checkpoint") != self._checkpoint:
            return  # of an older checkpoint: its stage has yet to run
        tags = {f"leap.data.{file}": value for file, value in content.get("data", {}).items()}
        if name == "verdict":
            tags["leap.verdict"] = "passed" if content["passed"] else "refused"
        else:
            self._log_numbers(evidence_numbers(name, content))
        self._client.log_artifact(self._run, str(path), artifact.rpartition("/")[0] or None)
        self._set_tags(tags)
        self._done(name, digest)

    def _missing(self, numbers: list[Number]) -> list[Number]:
        """Those that the live run has not logged."""
        known = {
            name: {item.step for item in self._client.get_metric_history(self._run, name)}
            for name in {name for name, _, _ in numbers}
        }
        return [number for number in numbers if number[2] not in known[number[0]]]

    def _log_numbers(self, numbers: list[Number]) -> None:
        now = int(time.time() * 1000)
        metrics = [metric(name, value, step, now) for name, value, step in numbers]
        for start in range(0, len(metrics), METRICS_A_CALL):
            self._client.log_batch(self._run, metrics[start : start + METRICS_A_CALL])

    def _is_new(self, name: str, digest: str) -> bool:
        return self._tags.get(f"leap.logged.{name}") != digest

    def _done(self, name: str, digest: str) -> None:
        self._set_tags({f"leap.logged.{name}": digest})

    def _set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        new = [RunTag(name, value) for name, value in tags.items() if self._tags.get(name) != value]
        if new:
            self._client.log_batch(self._run, tags=new)
            self._tags |= tags
