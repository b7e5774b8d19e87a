import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_checkpoint, write_evidence
from ruamel.yaml import YAML
from typer.testing import CliRunner

import leap.gate.binding as binding
from leap.cli import app
from leap.core.environment import this_hardware
from leap.core.errors import UserError
from leap.core.files import json_checksum, sha256_of
from leap.core.settings import Settings
from leap.core.source_code import PACKAGE
from leap.evidence.evidence_file import loaded_code
from leap.gate.judgement import judge_checkpoint, judge_folder

SETTINGS = made_settings()
LATENCY = Path("evaluations/leap-1/latency.json")


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    with contextlib.chdir(folder):
        for variant in ("baseline", "leap", "fixed_depth"):
            write_evidence(Path(), SETTINGS, variant)
    return folder


@pytest.fixture(autouse=True)
def project(measurements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(measurements, tmp_path, dirs_exist_ok=True)
    return tmp_path


def judge(settings: Settings = SETTINGS, models: Path | None = Path("models")) -> dict[str, Any]:
    return judge_checkpoint(settings, "leap", 1, models=models)[1]


def refusal(settings: Settings = SETTINGS, models: Path | None = Path("models")) -> str:
    with pytest.raises(UserError) as caught:
        judge(settings, models)
    return str(caught.value)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], with_checksum: bool = True) -> None:
    content = json.loads(path.read_text())
    change(content)
    if with_checksum:
        content["checksum"] = json_checksum(content)
    path.write_text(json.dumps(content))


def test_evidence_that_fits_is_judged_and_named_in_the_verdict() -> None:
    verdict = judge()
    assert verdict["passed"]
    assert verdict["bound_to"]["data"] == {"data/pairs.csv": sha256_of(Path("data/pairs.csv"))}
    assert verdict["bound_to"]["evidence"]["latency"] == json.loads(LATENCY.read_text())["checksum"]
    here = this_hardware(on_card=False)
    assert verdict["hardware"] == {"measured_on": here[0], "target": here}
    assert verdict == judge()


def test_an_edited_figure_is_refused() -> None:
    rewrite(LATENCY, lambda content: content.update(speed_up=9.0), with_checksum=False)
    assert f"{LATENCY} was edited after it was written" in refusal()


def test_evidence_without_a_checksum_is_refused() -> None:
    rewrite(LATENCY, lambda content: content.pop("checksum"), with_checksum=False)
    assert f"{LATENCY} has no checksum" in refusal()


def test_evidence_of_another_model_is_refused() -> None:
    write_checkpoint(Path("models/leap-1"), b"trained again")
    assert "evaluations/leap-1/diagnose.json was measured on model" in refusal()


def test_without_the_models_the_files_must_agree() -> None:
    write_checkpoint(Path("models/leap-1"), b"trained again")
    assert judge(models=None)["passed"]
    rewrite(LATENCY, lambda content: content.update(model="0" * 64))
    assert f"{LATENCY} was measured on model 000000000000" in refusal(models=None)


def test_evidence_of_another_variant_is_refused() -> None:
    rewrite(LATENCY, lambda content: content.update(variant="baseline"))
    assert f"{LATENCY} is evidence of latency, baseline-1: it lies in the wrong place" in refusal()


def test_other_settings_are_refused_by_their_names() -> None:
    other = made_settings(latency={"iterations": 40}, evaluation={"bootstrap": 2000})
    message = refusal(other)
    assert f"{LATENCY} was measured with latency.iterations 30, the settings say 40" in message
    assert "sts/software.json was measured with evaluation.bootstrap 1000, the settings say 2000" in message


def test_another_exit_rule_is_refused() -> None:
    assert "was measured with exit settings" in refusal(made_settings(exit={"threshold": 0.9}))


def test_data_that_changed_are_refused_and_data_that_are_away_are_not() -> None:
    Path("data/pairs.csv").write_text("a,b,5\n")
    assert f"{LATENCY} was measured on another data/pairs.csv than the one there is now" in refusal()
    Path("data/pairs.csv").unlink()
    assert judge()["passed"]
    rewrite(LATENCY, lambda content: content.update(data={"data/pairs.csv": "0" * 64}))
    assert "latency.json was measured on another data/pairs.csv than the other files" in refusal()


def test_code_that_changed_is_refused_by_its_name() -> None:
    name = "models/packed_encoder.py"
    assert loaded_code()[name] == sha256_of(PACKAGE / name)
    rewrite(LATENCY, lambda content: content["code"].update({name: "0" * 64}))
    assert f"{LATENCY} was measured by other code: leap/{name} changed since" in refusal()


def test_a_stale_rival_is_refused_too() -> None:
    path = Path("evaluations/fixed_depth-1/diagnose.json")
    rewrite(path, lambda content: content.update(depth=3), with_checksum=False)
    assert f"{path} was edited" in refusal()


def test_a_rivals_latency_is_not_needed_its_quality_is() -> None:
    wanted = judge()["checks"]
    Path("evaluations/fixed_depth-1/latency.json").unlink()
    assert judge()["checks"] == wanted
    Path("evaluations/fixed_depth-1/diagnose.json").unlink()
    assert "evaluations/fixed_depth-1/diagnose.json is missing" in refusal()
    LATENCY.unlink()
    assert "evaluations/leap-1/latency.json is missing" in refusal()


def test_all_faults_are_told_at_once() -> None:
    rewrite(LATENCY, lambda content: content.update(speed_up=9.0), with_checksum=False)
    rewrite(LATENCY.with_name("diagnose.json"), lambda content: content.update(depth=9), with_checksum=False)
    assert refusal().count("was edited") == 2


def test_the_commit_and_its_changes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert binding._commit({"commit": "abc", "dirty": True}) == "abc with changes"
    assert binding._commit({}) == "no commit"


def test_the_command_judges_without_models_and_without_mlflow(project: Path) -> None:
    shutil.rmtree("models")
    shutil.rmtree("data")
    with Path("params.yaml").open("w") as file:
        YAML().dump(SETTINGS.model_dump(mode="json"), file)
    passed = command("evaluations/leap-1")
    assert passed.returncode == 0, passed.stderr
    assert "realised exit layers" in passed.stdout
    assert "leap-1 passes" in passed.stdout


def command(folder: str) -> "subprocess.CompletedProcess[str]":
    """`leap gate` in a process that can import neither MLflow nor PyTorch."""
    code = (
        "import sys\nsys.modules['mlflow'] = sys.modules['torch'] = None\n"
        f"from leap.cli import run\nsys.argv = ['leap', 'gate', '{folder}']\nrun()"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    run = [sys.executable, "-c", code]
    return subprocess.run(run, capture_output=True, text=True, env=environment, check=False)


def test_a_folder_of_many_is_judged_whole_and_rivals_are_pointed_out(project: Path) -> None:
    verdicts = judge_folder(SETTINGS, Path("evaluations"))
    assert [verdict["variant"] for verdict in verdicts] == ["baseline", "fixed_depth", "leap"]
    assert [verdict["role"] for verdict in verdicts] == ["baseline", "fixed_depth", None]
    (one,) = judge_folder(SETTINGS, Path("evaluations/leap-1"))
    assert one["checks"] == judge()["checks"]


def test_the_command_on_a_folder_of_many_ends_with_1_where_one_is_refused(project: Path) -> None:
    with Path("params.yaml").open("w") as file:
        YAML().dump(SETTINGS.model_dump(mode="json"), file)
    judged = ["gate", "evaluations"]
    assert CliRunner().invoke(app, judged).exit_code == 0
    slow = {"speed_up": 0.9, "speed_up_ci95": [0.85, 0.95]}
    write_evidence(project, SETTINGS, "elastic", latency=slow)
    refused = CliRunner().invoke(app, judged)
    assert "elastic-1 is refused by speed_up" in refused.output
    assert refused.exit_code == 1
    with pytest.raises(UserError, match="src holds no evidence"):
        judge_folder(SETTINGS, Path("src"))


def test_evidence_in_a_folder_of_another_name(project: Path) -> None:
    Path("evaluations/leap-1").rename("evaluations/mine-1")
    with pytest.raises(UserError, match="holds the evidence of leap-1: rename it to that"):
        judge_folder(SETTINGS, Path("evaluations/mine-1"))


def test_help_names_the_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    for command in ("gate", "promote", "rollback", "history", "export"):
        assert command in shown
