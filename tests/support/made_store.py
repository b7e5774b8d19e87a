"""An MLflow store for tests: its creation takes seconds, so it is made once and copied."""

import os
import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from made_evidence import made_settings
from sqlalchemy import Engine, event

from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash, model_hash
from leap.registry.checkpoint_run import Logged, log_checkpoint
from leap.registry.versions import Standing, promote
from leap.tracking import Tracking
from leap.tracking.store import DATABASE, StoreError


@event.listens_for(Engine, "connect")
def trust_the_machine(connection: Any, _: Any) -> None:
    """Let SQLite not wait for the disk at every change, which is half the time of these tests."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@cache
def fresh_store() -> Path:
    """A project folder with nothing but an empty store, made once for all workers of a run."""
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return create_store(Path(_removed_at_exit().name))
    folder = Path(os.environ["LEAP_CACHE"]) / "fresh-store"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        return folder if (folder / DATABASE).exists() else create_store(folder)


@cache
def _removed_at_exit() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def create_store(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert Tracking.open(made_settings()).client is not None
    return folder


def enter_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `folder` a project with an empty store and the working folder of the test.

    A store that is created in the test is copied too.
    """
    shutil.copytree(fresh_store(), folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("leap.tracking.store._create_tables", copy_tables)
    return folder


def copy_tables(database: Path) -> None:
    """In place of `_create_tables`, which takes seconds."""
    shutil.copyfile(fresh_store() / DATABASE, database)


def bare_model(checkpoint: Path, target: Path, metadata: dict[str, str], card: str | None) -> None:
    """In place of `write_model_folder`, whose check of the environment takes seconds: the folder as it is."""
    shutil.copytree(checkpoint, target)


def verdict_on(
    variant: str, value: float | None = 0.8, passed: bool = True, metric: str = "sts.x"
) -> dict[str, Any]:
    """A verdict of one check on the model that is there."""
    folder = Path("models") / f"{variant}-1"
    return {
        "variant": variant,
        "seed": 1,
        "checkpoint": checkpoint_hash(folder),
        "model": model_hash(folder),
        "role": None,
        "passed": passed,
        "primary_metric": {"metric": metric, "value": value},
        "checks": [{"name": "similarity", "passed": True, "severity": "refuse", "reason": "fine"}],
    }


def logged(tracking: Tracking, variant: str, card: str | None = None) -> Logged:
    """The model in MLflow; in turn with other processes, as `leap.registry.promotion` logs it."""
    with tracking.locked("runs"):
        return log_checkpoint(tracking, Project().checkpoint(variant, 1), card)


def log(settings: Settings, variant: str) -> bool:
    """Log a checkpoint; return true where MLflow has everything of it now."""
    tracking = Tracking.open(settings)
    if tracking.client is None:
        return False
    try:
        logged(tracking, variant)
    except StoreError:
        return False
    return True


def place(
    settings: Settings,
    variant: str,
    value: float | None = 0.8,
    data: dict[str, str] | None = None,
    **options: Any,
) -> Standing:
    """Logs a model and promotes it by a verdict with this value of the primary metric."""
    tracking = Tracking.open(settings, required=True)
    verdict = verdict_on(variant, value, **options)
    return promote(tracking, verdict, logged(tracking, variant), data or {"pairs": "hash"})
