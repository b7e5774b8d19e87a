"""The `leap` command: one message for a mistake, exit code 1, no traceback, nothing half-written."""

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tiny_models import WORDS, MakeFolder
from typer.testing import CliRunner

from leap import __version__
from leap.cli import app, run
from leap.core.errors import UserError
from leap.core.files import must_be_new
from leap.core.project import stage_that_writes
from leap.exits import LeapEncoder

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(PROJECT / "profiles", tmp_path / "profiles")
    shutil.copyfile(PROJECT / "params.yaml", tmp_path / "params.yaml")
    return tmp_path


def leap(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell would, in this process: imports take seconds."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(project),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["leap", *arguments]),
        pytest.raises(SystemExit) as ended,
    ):
        run()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def test_a_profile_is_written_and_checked(project: Path) -> None:
    done = leap(project, "profile", "paper", "--set", "train.epochs=2")
    assert done.returncode == 0, done.stderr
    text = (project / "params.yaml").read_text()
    assert "profile: paper" in text
    assert "epochs: 2" in text
    checked = leap(project, "check")
    assert checked.returncode == 0, checked.stderr
    # What only a study lacks stops nothing.
    assert "for a study only: studies.cross_distillation.variants.tinybert_6.checkpoint" in checked.stdout
    edited = (project / "params.yaml").read_text()
    refused = leap(project, "profile", "embedded")
    assert (refused.returncode, (project / "params.yaml").read_text()) == (1, edited)
    assert "--force replaces them" in refused.stderr
    assert leap(project, "profile", "embedded", "--force").returncode == 0
    assert (project / "params.yaml").read_text() == (PROJECT / "params.yaml").read_text()
    assert leap(project, "profile", "local").returncode == 0  # from a profile as it is to another


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
    options = ("--sentences", "lines.txt", "--batch-size", "1", "--length", "sentences", "--warmup", "0")
    options += ("--iterations", "5", "--device", "cpu", "--output", "latency.json")
    done = leap(project, "latency", str(make_folder()), *options)
    assert done.returncode == 0, done.stderr
    assert "monitored  1 " in done.stdout
    content = json.loads((project / "latency.json").read_text())
    assert {row["path"] for row in content["rows"]} == {"full", "exit", "monitored", "truncated"}
    assert [row["layer"] for row in content["by_layer"]] == [1, 2, 3, 4, 5]
    assert content["environment"]["cpu"]
    assert content["exit_rule"] == {"threshold": 0.95, "min_layer": 5, "patience": 1}
    for wrong, message in ((("--length", "7"), "lengths.1"), (("--min-layer", "9"), "min_layer 9")):
        done = leap(project, "latency", str(make_folder()), *options, *wrong)
        assert (done.returncode, done.stderr.splitlines()[-1][:7]) == (1, "error: ")
        assert message in done.stderr


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"leap {__version__}\n"


TARGETS = {
    "calibrate": ("calibrate", "model", "--sentences", "lines.txt", "--output"),
    "doctor": ("doctor", "model", "--page"),
    "export": ("export", "--to", "sentence-transformers", "model"),
    "latency": ("latency", "model", "--output"),
    "monitor": ("monitor", "--reference", "w", "--current", "w", "--prometheus"),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_target_that_is_not_ours_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Refused before any work: the model is not even there, nor are the sentences."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "mine"
    if kind == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    failed = CliRunner().invoke(app, [*TARGETS[name], "mine"])
    assert isinstance(failed.exception, UserError)
    assert "mine exists" in str(failed.exception)
    assert sorted(tmp_path.rglob("*")) == before
    assert kind == "link" or (target / "thesis.txt" if kind == "folder" else target).read_text() == "mine"


def test_a_result_of_the_same_command_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<!doctype html>\n<meta name="generator" content="leap doctor">')
    must_be_new(tmp_path / "page.html", mark='<meta name="generator" content="leap doctor">')
    with pytest.raises(UserError, match="exists"):
        must_be_new(tmp_path / "page.html")
    with pytest.raises(UserError, match=r"page\.html is a file"):
        must_be_new(tmp_path / "page.html" / "x")


LOCK = """schema: '2.0'
stages:
  calibrate@leap-1:
    cmd: python stages/calibrate.py
    deps:
    - path: students/leap-1
      md5: 1.dir
    outs:
    - path: models/leap-1
      md5: 2.dir
"""


def test_what_dvc_owns_is_written_by_dvc_alone(
    tmp_path: Path, make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "dvc.lock").write_text(LOCK)
    (tmp_path / "lines.txt").write_text("bi be")
    for model in ("models/leap-1", "students/leap-1"):
        shutil.copytree(make_folder(), tmp_path / model)
    assert stage_that_writes(Path("models/leap-1/heads.safetensors")) == "calibrate@leap-1"
    assert stage_that_writes(Path("models")) is None
    assert stage_that_writes(Path("students/leap-1")) is None
    calibrate = ["calibrate", "models/leap-1", "--sentences", "lines.txt"]
    assert "by --output" in str(CliRunner().invoke(app, calibrate).exception)
    failed = CliRunner().invoke(app, [*calibrate, "--output", "models/leap-1/mine"]).exception
    assert "an output of DVC's stage calibrate@leap-1" in str(failed)


def test_leap_json_that_holds_a_list_is_one_message(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "leap.json").write_text("[1]")
    with pytest.raises(UserError, match=r"leap\.json does not hold an exit rule"):
        LeapEncoder(folder)


# Runs commands of `leap` as after `pip install .`: what the extras bring cannot be imported.
CORE = """
import json, sys
missing, commands = json.loads(sys.argv[1])
class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotThere())
from leap.cli import run
for command in commands:
    sys.argv = ["leap", *command]
    try:
        run()
    except SystemExit as ended:
        print("ended with", ended.code or 0, flush=True)
"""
MISSING = (
    *("dvc", "mlflow", "great_expectations", "sentence_transformers", "sqlalchemy", "filelock", "ir_measures"),
    *("pandas", "pyarrow", "sklearn", "matplotlib", "onnx", "onnxscript", "datasets", "fastapi", "uvicorn"),
)


def test_a_core_install_calibrates_examines_and_names_the_extra_that_is_missing(
    tmp_path: Path, make_folder: MakeFolder, sentences: list[str]
) -> None:
    generator = random.Random(3)
    lines = [" ".join(generator.choices(sentences, k=2)) for _ in range(700)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    (tmp_path / "table.parquet").touch()
    folder = str(make_folder())
    commands = [
        ["calibrate", folder, "--sentences", "lines.txt", "--output", "out"],
        ["doctor", folder, "--sentences", "lines.txt"],
        ["calibrate", folder, "--sentences", "table.parquet"],
    ]
    command = [sys.executable, "-c", CORE, json.dumps([MISSING, commands])]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    ends = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ends == ["ended with 0", "ended with 0", "ended with 1"], done.stderr
    assert (tmp_path / "out" / "calibration.json").is_file()
    assert "early exit" in done.stdout.lower()
    assert "pip install 'leap-pipeline[pipeline]'" in done.stderr
    assert not (tmp_path / "doctor.html").exists()
    assert done.stderr.splitlines()[-1] == "error: pyarrow is missing: pip install 'leap-pipeline[pipeline]'"
