"""An MLflow store for tests: its creation takes seconds, so it is made once and copied."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings

from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash, model_hash
from leap.registry.checkpoint_run import Logged, log_checkpoint
from leap.registry.versions import Standing, promote
from leap.tracking import Tracking
from leap.tracking.store import StoreError


@cache
def fresh_store() -> tempfile.TemporaryDirectory[str]:
    """A project folder with nothing but an empty store; it goes with the process."""
    folder = tempfile.TemporaryDirectory()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.name)
        assert Tracking.open(made_settings()).client is not None
    return folder


def enter_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `folder` a project with an empty store and the working folder of the test."""
    shutil.copytree(fresh_store().name, folder)
    monkeypatch.chdir(folder)
    return folder


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
    """The model in MLflow."""
    return log_checkpoint(tracking, Project().checkpoint(variant, 1), card)


def log(settings: Settings, variant: str) -> bool:
    """Whether MLflow has everything of a checkpoint now."""
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
