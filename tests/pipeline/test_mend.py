"""Half a file of DVC's own, as a kill leaves it: `dvc repro` refuses, scripts/mend.py is the way out."""

import subprocess
import sys
from pathlib import Path

import pytest
from killing import DAMAGED

MEND = Path(__file__).parents[2] / "scripts" / "mend.py"
STAGES = """\
stages:
  copy: {cmd: cp one two, deps: [one], outs: [two]}
  again: {cmd: cp two three, deps: [two], outs: [three]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two stages, reproduced."""
    (tmp_path / "one").write_text("1")
    (tmp_path / "dvc.yaml").write_text(STAGES)
    run(tmp_path, "dvc", "init", "--no-scm")
    run(tmp_path, "dvc", "repro")
    return tmp_path


def run(project: Path, *command: str | Path, expect: int = 0) -> str:
    """A command's output."""
    done = subprocess.run(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == expect, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("file", "written"),
    [
        ("dvc.lock", b"stages:\n  copy:\n    cmd: cp one two\n"),
        ("dvc.lock", b"schema: '2.0'\nstages:\n  copy:\n    cmd: cp one two\n    deps: ["),
        ("dvc.lock", b"schema: '2.0'\nstages:\n  \xc3"),
        (".dvc/tmp/rwlock", b'{"/data": {"wri'),
    ],
)
def test_what_dvc_refuses_is_removed_and_nothing_runs_again(project: Path, file: str, written: bytes) -> None:
    (project / file).write_bytes(written)
    assert DAMAGED.search(run(project, "dvc", "repro", expect=255))
    assert f"{file} was damaged by a kill and is removed" in run(project, sys.executable, MEND)
    assert "Running stage" not in run(project, "dvc", "repro")
    assert (project / "three").read_text() == "1"


def test_what_can_be_read_stays(project: Path) -> None:
    kept = [path.read_bytes() for path in (project / "dvc.lock", project / ".dvc/tmp/rwlock")]
    assert run(project, sys.executable, MEND) == ""
    assert [path.read_bytes() for path in (project / "dvc.lock", project / ".dvc/tmp/rwlock")] == kept


def test_outside_a_project_it_says_so(tmp_path: Path) -> None:
    assert "run this in the project's folder" in run(tmp_path, sys.executable, MEND, expect=1)
