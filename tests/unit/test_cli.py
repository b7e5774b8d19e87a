"""The `leap` command: one message for a mistake, exit code 1, no traceback, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import WORDS, MakeFolder

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


def test_latency(project: Path, make_folder: MakeFolder) -> None:
    (project / "lines.txt").write_text("\n".join(f"{one} {two}" for one in WORDS[:8] for two in WORDS[:8]))
    options = ("--sentences", "lines.txt", "--batch", "1", "--length", "sentences", "--warmup", "0")
    options += ("--iterations", "5", "--device", "cpu", "--out", "latency.json")
    done = leap(project, "latency", str(make_folder()), *options)
    assert done.returncode == 0, done.stderr
    assert "| monitored | 1 |" in done.stdout
    found = json.loads((project / "latency.json").read_text())
    paths = {"full", "exit", "monitored", "truncated", *(f"layer_{layer}" for layer in range(1, 6))}
    assert {row["path"] for row in found["rows"]} == paths
    assert found["environment"]["cpu"]
    assert found["exit_rule"] == {"threshold": 0.95, "min_layer": 5, "patience": 1}
    for wrong, message in ((("--length", "7"), "lengths.1"), (("--min-layer", "9"), "min_layer 9")):
        done = leap(project, "latency", str(make_folder()), *options, *wrong)
        assert (done.returncode, done.stderr.splitlines()[-1][:7]) == (1, "error: ")
        assert message in done.stderr
