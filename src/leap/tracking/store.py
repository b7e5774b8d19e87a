"""Opening MLflow: a server by `tracking.uri`, else SQLite and artefacts under mlruns/ of the project.

The local store keeps its artefact paths relative to the project, so the folder can be moved or copied: all of
MLflow works as long as it is started in the project's folder, as every stage is.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.errors import UserError
from leap.passwords import without_passwords
from leap.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from leap.tracking.run import TrainingRun

logger = logging.getLogger(__name__)

FOLDER = Path("mlruns")
DATABASE = FOLDER / "mlflow.db"
ARTIFACTS = FOLDER / "artifacts"

# A server that does not answer costs seconds, not the minutes of MLflow's defaults; a user's value wins.
QUIET_AND_QUICK = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


# MLflow's page opens an experiment of this kind on its runs and charts, not on those of language models.
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "One run a checkpoint, named variant-seed. Charts: `loss/*` the terms of the loss by step, "
        "`layers/*` by layer, `exit/*` with exits taken, `latency/*` by batch size. See docs/tracking.md."
    ),
}


@dataclass(frozen=True)
class Tracking:
    """An opened MLflow experiment, or one that cannot be reached, whose calls then do nothing."""

    settings: Settings
    uri: str
    client: MlflowClient | None
    experiment: str | None

    @classmethod
    def open(cls, settings: Settings, required: bool = False) -> Tracking:
        """Opens the experiment of the settings and creates it the first time.

        Args:
            settings: `tracking.uri` and `tracking.experiment`.
            required: whether a store that cannot be reached is an error rather than a warning.

        Raises:
            UserError: the store cannot be reached or is switched off, and it is required.
        """
        if not settings.tracking.enabled:
            if required:
                raise UserError("tracking.enabled is false: set it to true for what needs MLflow")
            return cls(settings, "", None, None)
        # Absolute, for MLflow keeps a store open by its name, whatever folder the process moves to.
        uri = settings.tracking.uri or f"sqlite:///{DATABASE.absolute().as_posix()}"
        import_mlflow(uri)
        try:
            client, experiment = _opened(uri, settings)
        except failures() as error:
            message = f"tracking.uri: MLflow at {without_passwords(uri)} cannot be used: {first_line(error)}"
            if required:
                raise UserError(f"{message}; start the server or mend the setting, and run again") from None
            logger.warning("%s; the next stage or `leap track` logs what is missing", message)
            return cls(settings, uri, None, None)
        return cls(settings, uri, client, experiment)

    def training_run(self, variant: str, seed: int, parameters: dict[str, Any]) -> TrainingRun:
        """A live run for the trainer: a context manager; see `leap.tracking.run.TrainingRun`."""
        from leap.tracking.run import TrainingRun

        return TrainingRun(self, variant, seed, parameters)

    def find(self, tags: dict[str, str], condition: str = "") -> list[Run]:
        """The runs of the experiment with these tags, the newest first."""
        assert self.client is not None
        assert self.experiment is not None
        clauses = [f"tags.`{key}` = '{value}'" for key, value in tags.items()] + [condition] * bool(condition)
        return list(self.client.search_runs([self.experiment], " and ".join(clauses)))


def import_mlflow(uri: str) -> None:
    """Imports MLflow without its chatter and names the store for the parts of it that read a global."""
    for name, value in QUIET_AND_QUICK.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)


def failures() -> tuple[type[Exception], ...]:
    """What a store that is down, slow, locked or full raises; OSError includes the errors of requests."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, OSError)


def first_line(error: Exception) -> str:
    """What a person needs of MLflow's long messages, without the password of a URI in it."""
    text = str(error).strip() or type(error).__name__
    return without_passwords(text.splitlines()[0])[:300]


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Stages that run side by side in this project take turns, so that none creates what another just did."""
    from filelock import FileLock

    FOLDER.mkdir(exist_ok=True)
    with FileLock(FOLDER / f".{name}.lock", timeout=300):
        yield


def _opened(uri: str, settings: Settings) -> tuple[MlflowClient, str]:
    """The client and the experiment's id."""
    from mlflow import MlflowClient

    name = settings.tracking.experiment
    if settings.tracking.uri is not None:
        client = MlflowClient(uri, uri)
        found = client.get_experiment_by_name(name)
        return client, found.experiment_id if found else _create(client, name)
    with one_at_a_time("store"):
        if not DATABASE.exists():
            logger.info("creating MLflow's store %s: takes a few seconds, once", DATABASE)
        client = MlflowClient(uri, uri)
        found = client.get_experiment_by_name(name)
        return client, found.experiment_id if found else _create_relative(client, name)


def _create(client: MlflowClient, name: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(name, tags=EXPERIMENT_TAGS))
    except MlflowException:
        # Somebody else created it between the look and the call.
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


def _create_relative(client: MlflowClient, name: str) -> str:
    identifier = str(client.create_experiment(name, str(ARTIFACTS), EXPERIMENT_TAGS))
    # MLflow makes a local location absolute when it creates an experiment and derives the paths of runs and
    # models from it; written relative once, all of them stay so and mlruns/ can be moved with its project.
    with sqlite3.connect(DATABASE) as connection:
        connection.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (ARTIFACTS.as_posix(), identifier),
        )
    connection.close()
    return identifier
