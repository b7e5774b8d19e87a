"""Opening MLflow: the store that `tracking.uri` names, else SQLite and artefacts under mlruns/ of the project."""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.passwords import without_passwords
from leap.core.settings import Settings
from leap.tracking.entities import HEADLINE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from leap.tracking.training_run import TrainingRun

logger = logging.getLogger(__name__)

DATABASE = Path("mlruns/mlflow.db")
ARTIFACTS = Path("mlruns/artifacts")

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

# A view of the runs that MLflow's page keeps under a name: the link `...runs?viewStateShareKey=leap` opens it.
VIEW = {
    "orderByKey": "metrics.`sts_exit`",
    "orderByAsc": False,
    "selectedColumns": ["tags.`leap.verdict`", *(f"metrics.`{name}`" for name in HEADLINE)],
}
# MLflow's page opens an experiment of this kind on its runs and charts, not on those of language models.
EXPERIMENT_TAGS = {
    "mlflow.sharedViewState.leap": json.dumps(VIEW),
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "One run a checkpoint, named variant-seed. Charts: `loss/*` the terms of the loss by step, "
        "`layers/*` by layer, `exit/*` with exits taken, `latency/*` by batch size. See docs/tracking.md."
    ),
}
# Where MLflow writes absolute locations, which are another project's after a move or a copy.
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)


class StoreError(Exception):
    """A call to MLflow failed: a server that is down, a database that is locked, a full or refused bucket.

    Attributes:
        code: MLflow's own error code, empty where another library raised.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Tracking:
    """An opened MLflow experiment, or one that cannot be reached, whose calls then do nothing."""

    settings: Settings
    uri: str
    client: MlflowClient | None
    experiment: str | None

    @classmethod
    def open(cls, settings: Settings, required: bool = False) -> Tracking:
        """Open the experiment of the settings; create it the first time, restore it if it was deleted.

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
        database = local_database(settings)
        uri = f"sqlite:///{database.as_posix()}" if database else str(settings.tracking.uri)
        try:
            with store_errors():
                import_mlflow(uri)
            opened = cls(settings, uri, *_open_client(uri, database, settings))
            opened._close_left_runs()
        except StoreError as error:
            message = f"tracking.uri: MLflow at {without_passwords(uri)} cannot be used: {error}"
            if required:
                raise UserError(f"{message}; start the server or correct the setting, and run again") from None
            logger.warning("%s; `dvc repro` or `leap track` logs what is missing", message)
            return cls(settings, uri, None, None)
        return opened

    def training_run(self, variant: str, seed: int, parameters: dict[str, Any]) -> TrainingRun:
        """Return a live run for the trainer: a context manager; `leap.tracking.training_run.TrainingRun`."""
        from leap.tracking.training_run import TrainingRun

        return TrainingRun(self, variant, seed, parameters)

    def create_run(self, name: str, tags: dict[str, str]) -> Run:
        """Create a run, open until it is terminated or the next one to open this experiment finds us dead."""
        assert self.client is not None
        assert self.experiment is not None
        owned = {**tags, "leap.process": f"{socket.gethostname()}:{os.getpid()}"}
        return self.client.create_run(self.experiment, tags=owned, run_name=name)

    def find(self, tags: dict[str, str], condition: str = "") -> list[Run]:
        """Return the runs of the experiment with these tags, the newest first."""
        assert self.client is not None
        assert self.experiment is not None
        clauses = [f"tags.`{key}` = '{value}'" for key, value in tags.items()] + [condition] * bool(condition)
        return list(self.client.search_runs([self.experiment], " and ".join(clauses)))

    def locked(self, purpose: str) -> AbstractContextManager[None]:
        """Take turns with other processes that write the same, so that none creates what another just did."""
        return locked(local_database(self.settings) or project_root() / DATABASE, purpose)

    def _close_left_runs(self) -> None:
        """Close as KILLED the runs that a dead process of this machine left open."""
        assert self.client is not None
        for run in self.find({}, "attributes.status = 'RUNNING'"):
            if has_died(run.data.tags.get("leap.process", "")):
                self.client.set_terminated(run.info.run_id, "KILLED")


def project_root() -> Path:
    """Return the project's folder, also from the copy of it in which `dvc exp run --temp` or --queue works."""
    here = Path.cwd()
    inside = (".dvc", "tmp", "exps")
    return next((place.parents[2] for place in here.parents if place.parts[-3:] == inside), here)


def local_database(settings: Settings) -> Path | None:
    """Return the SQLite file of the settings' store, absolute; null where the store is another."""
    uri = settings.tracking.uri
    if uri is None:
        return project_root() / DATABASE
    return project_root() / uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else None


def import_mlflow(uri: str) -> None:
    """Import MLflow without its chatter and name the store for the parts of it that read a global."""
    for name, value in QUIET_AND_QUICK.items():
        os.environ.setdefault(name, value)
    import mlflow

    # Their errors are raised too, and shown in one line; a logged one is a page of traceback.
    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn whatever a store raises into a `StoreError`: databases, servers and clouds raise what they like."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(first_line(error), getattr(error, "error_code", "")) from error


def guard(client: Any) -> MlflowClient:
    """Return a client whose calls raise nothing but `StoreError`."""
    return cast("MlflowClient", _Guarded(client))


class _Guarded:
    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            with store_errors():
                return method(*arguments, **options)

        return call


def first_line(error: Exception) -> str:
    """Return what a person needs of MLflow's long messages, without the password of a URI in it."""
    text = str(error).strip() or type(error).__name__
    return without_passwords(text.splitlines()[0])[:300]


def has_died(process: str) -> bool:
    """Return whether the process of a tag `leap.process` is a dead one of this machine; others cannot be asked."""
    host, _, number = process.rpartition(":")
    if host != socket.gethostname():
        return False
    # Our own number on what we did not open is a dead process's: numbers begin again in a container.
    return int(number) == os.getpid() or not _alive(int(number))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def locked(database: Path, purpose: str) -> Iterator[None]:
    """Take turns with the other processes that use the same store for the same purpose.

    Raises:
        StoreError: another process held the lock for five minutes.
    """
    from filelock import FileLock, Timeout

    database.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(database.with_name(f".{database.name}.{purpose}.lock"), timeout=300)
    try:
        lock.acquire()
    except Timeout:
        raise StoreError(f"another process has held {lock.lock_file} for five minutes") from None
    try:
        yield
    finally:
        lock.release()


def _open_client(uri: str, database: Path | None, settings: Settings) -> tuple[MlflowClient, str]:
    """Return the client and the experiment's id."""
    with locked(database, "open") if database else nullcontext():
        if database and not database.exists():
            _create_tables(database)
        with store_errors():
            from mlflow import MlflowClient

            client = guard(MlflowClient(uri, uri))
        place = (project_root() / ARTIFACTS).as_uri() if database else None
        experiment = _experiment(client, settings.experiment, place)
        location = experiment.artifact_location
        if settings.tracking.uri is None and location != place and _is_of_a_project(location):
            _move(project_root() / DATABASE, location, str(place))
    return client, str(experiment.experiment_id)


def _experiment(client: MlflowClient, name: str, place: str | None) -> Any:
    experiment: Any = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            client.create_experiment(name, place, EXPERIMENT_TAGS)
        except StoreError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":  # on a server somebody else may just have created it
                raise
        experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        logger.warning("MLflow's experiment %s was deleted there: it is restored", name)
        client.restore_experiment(experiment.experiment_id)
    for key in EXPERIMENT_TAGS.keys() - experiment.tags.keys():  # one that somebody else created
        client.set_experiment_tag(experiment.experiment_id, key, EXPERIMENT_TAGS[key])
    return experiment


def _create_tables(database: Path) -> None:
    """Create MLflow's tables whole or not at all: MLflow repairs no half-made store."""
    logger.info("creating MLflow's store %s: takes a few seconds, once", database)
    with whole_file(database) as part, store_errors():
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{part.absolute().as_posix()}").search_experiments(max_results=1)


def _is_of_a_project(location: str) -> bool:
    """Tell the folder that we create in a project from a place, such as a bucket, that somebody else chose."""
    return urlsplit(location).scheme in ("", "file") and location.endswith(ARTIFACTS.as_posix())


def _move(database: Path, old: str, new: str) -> None:
    """Point the store at its artefacts again after the project was moved or copied; MLflow has no call for it."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in LOCATIONS:
            change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"  # nosec B608
            connection.execute(change, (new, len(old) + 1, len(old), old))
