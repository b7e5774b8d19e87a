"""The real DVC on settings with names that would leave the project or reach a shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one variant and one seed, next to a file and a folder that nobody may touch."""
    root = tmp_path / "project"
    for name in ("src", "stages"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml", "requirements.lock"):
        shutil.copyfile(PROJECT / name, root / name)
    (tmp_path / "victim-1").mkdir()
    (tmp_path / "victim-1" / "precious").touch()
    (tmp_path / "victim.parquet").touch()
    dvc(root, "init", "--no-scm", "-q", expect=0)
    return root


def dvc(root: Path, *arguments: str, expect: int) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "DVC_NO_ANALYTICS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (expect == 0), done.stdout + done.stderr
    return done.stdout + done.stderr


def change(root: Path, block: str, name: str) -> None:
    """Makes one evil name of a block; the gate's and the primary set's names then point to it."""
    yaml = YAML(typ="safe")
    content = yaml.load((root / "params.yaml").read_text())
    content[block] = {name: next(iter(content[block].values()))}
    if block == "variants":
        content["gate"] |= {"baseline": name, "fixed_depth": name}
    else:
        content["variants"] = {"leap": content["variants"]["leap"]}
        content["gate"] |= {"baseline": "leap", "fixed_depth": "leap"}
    with (root / "params.yaml").open("w") as file:
        yaml.dump(content, file)


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ("variants", "../../victim"),
        ("variants", "x; touch PWNED"),
        ("similarity", "../../../../victim"),
    ],
)
def test_dvc_repro_does_nothing(project: Path, block: str, name: str) -> None:
    change(project, block, name)
    output = dvc(project, "repro", expect=1)
    # DVC itself refuses some for their outputs, the first stage the others, with the name.
    assert f"{block}.{name}: String should match pattern" in output or "output" in output
    assert (project.parent / "victim-1" / "precious").exists()
    assert (project.parent / "victim.parquet").exists()
    assert not list(project.rglob("PWNED"))
    assert not any((project / folder).exists() for folder in ("models", "evaluations", "data/similarity"))
