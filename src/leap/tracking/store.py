"""Opening MLflow: a server by `tracking.uri`, else SQLite and artefacts under mlruns/ of the project.

The local store keeps its artefact paths relative to the project, so the folder can be moved or copied: all of
MLflow works as long as it is started in the project's folder, as every stage is.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.passwords import without_passwords
from leap.core.settings import Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from leap.tracking.training_run import TrainingRun

logger = logging.getLogger(__name__)

FOLDER = Path("mlruns")
DATABASE = FOLDER / "mlflow.db"
ARTIFACTS = FOLDER / "artifacts"

# A server that does not answer costs seconds, not the minutes of MLflow's defaults; a user's value wins.
QUIET_AND_QUICK = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

# The base classes of what S3, Google Cloud Storage and Azure raise through MLflow as it is.
OF_ARTIFACT_STORES = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "boto3.exceptions": ("Boto3Error",),
    "google.api_core.exceptions": ("GoogleAPIError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
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
        opened = cls(settings, uri, client, experiment)
        opened._close_left_runs()
        return opened

    def training_run(self, variant: str, seed: int, parameters: dict[str, Any]) -> TrainingRun:
        """A live run for the trainer: a context manager; see `leap.tracking.training_run.TrainingRun`."""
        from leap.tracking.training_run import TrainingRun

        return TrainingRun(self, variant, seed, parameters)

    def create_run(self, name: str, tags: dict[str, str]) -> Run:
        """A new run, open until it is terminated or the next one to open this experiment finds us dead."""
        assert self.client is not None
        assert self.experiment is not None
        owned = {**tags, "leap.process": this_process()}
        return self.client.create_run(self.experiment, tags=owned, run_name=name)

    def _close_left_runs(self) -> None:
        """Closes as KILLED the runs that a dead process of this machine left open."""
        assert self.client is not None
        try:
            for run in self.find({}, "attributes.status = 'RUNNING'"):
                if died(run.data.tags.get("leap.process", "")):
                    self.client.set_terminated(run.info.run_id, "KILLED")
        except failures() as error:
            logger.warning("tracking: %s; the next stage closes what a kill left open", first_line(error))

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

    # Their errors are raised too, and told in one line; a logged one is a page of traceback.
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)


def this_process() -> str:
    """The tag `leap.process` of what this process has open in a store: host and number."""
    return f"{socket.gethostname()}:{os.getpid()}"


def died(process: str) -> bool:
    """Whether the process of a tag `leap.process` is a dead one of this machine; others cannot be asked."""
    host, _, number = process.rpartition(":")
    if host != socket.gethostname():
        return False
    # Our own number on what we did not open is a dead process's: numbers start anew in a container.
    return int(number) == os.getpid() or not _alive(int(number))


def failures() -> tuple[type[Exception], ...]:
    """What a store raises that is down, slow, locked or full, or whose client library is not installed.

    OSError includes the errors of requests; an artefact store raises what its own library does.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    of_stores = [
        getattr(sys.modules[module], name)
        for module, names in OF_ARTIFACT_STORES.items()
        if module in sys.modules
        for name in names
    ]
    return (MlflowException, SQLAlchemyError, OSError, ImportError, *of_stores)


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
            _create_store(name)
        client = MlflowClient(uri, uri)
        found = client.get_experiment_by_name(name)
        if found is None:
            return client, _create_relative(client, name, DATABASE)
        if found.artifact_location == str(ARTIFACTS.absolute()):
            _make_relative(found.experiment_id, DATABASE)  # a kill came between the two steps
        return client, found.experiment_id


def _create_store(name: str) -> None:
    """MLflow's tables and the experiment, whole or not at all: MLflow mends no half-made store."""
    from mlflow import MlflowClient

    logger.info("creating MLflow's store %s: takes a few seconds, once", DATABASE)
    with whole_file(DATABASE) as beside:
        uri = f"sqlite:///{beside.absolute().as_posix()}"
        _create_relative(MlflowClient(uri, uri), name, beside)


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


def _create_relative(client: MlflowClient, name: str, database: Path) -> str:
    identifier = str(client.create_experiment(name, str(ARTIFACTS), EXPERIMENT_TAGS))
    _make_relative(identifier, database)
    return identifier


def _make_relative(identifier: str, database: Path) -> None:
    # MLflow makes a local location absolute when it creates an experiment and derives the paths of runs and
    # models from it; written relative once, all of them stay so and mlruns/ can be moved with its project.
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?",
            (ARTIFACTS.as_posix(), identifier),
        )
    connection.close()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
