"""An MLflow store for tests: its creation takes seconds, so it is made once and copied."""

import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from made_evidence import made_settings

from leap.tracking import Tracking


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
