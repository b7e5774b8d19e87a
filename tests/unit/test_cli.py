"""The `leap` command: one message for a mistake, exit code 1, no traceback, nothing half-written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(PROJECT / "profiles", tmp_path / "profiles")
    shutil.copyfile(PROJECT / "params.yaml", tmp_path / "params.yaml")
    return tmp_path


def leap(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from leap.cli import run; run()", *arguments]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_a_profile_is_written_and_checked(project: Path) -> None:
    done = leap(project, "profile", "paper", "--set", "train.epochs=2")
    assert done.returncode == 0, done.stderr
    text = (project / "params.yaml").read_text()
    assert "profile: paper" in text
    assert "epochs: 2" in text
    assert leap(project, "check").returncode == 0
    assert leap(project, "profile", "embedded").returncode == 0
    assert (project / "params.yaml").read_text() == (PROJECT / "params.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "papers"), "papers"),
        (("profile", "paper", "--set", "train.epochs=0"), "train.epochs"),
        (("check", "--params", "none.yaml"), "none.yaml is missing"),
        (("summary",), "reports/summary.json is missing: `dvc repro` writes it"),
    ],
)
def test_a_mistake_is_one_message(project: Path, arguments: tuple[str, ...], message: str) -> None:
    before = (project / "params.yaml").read_text()
    done = leap(project, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (project / "params.yaml").read_text() == before
