"""Where tracking is off the gate judges and writes its verdict; what needs the registry says so."""

import json
from pathlib import Path

import pytest
from made_evidence import made_settings, write_evidence
from ruamel.yaml import YAML
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.core.settings import Settings
from leap.gate.judgement import judge_checkpoint
from leap.registry.promotion import register


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    made = made_settings(tracking={"enabled": False})
    for variant in ("baseline", "leap", "fixed_depth"):
        write_evidence(tmp_path, made, variant)
    return made


def test_a_verdict_is_written_and_nothing_registered(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    verdict = register(settings, *judge_checkpoint(settings, "leap", 1))
    assert verdict["passed"]
    assert verdict["registry"] is None
    assert "not registered: tracking.enabled is false" in caplog.text
    assert json.loads(Path("verdicts/leap-1.json").read_text())["passed"]
    assert not Path("mlruns").exists()


def test_promotion_is_refused(settings: Settings) -> None:
    with Path("params.yaml").open("w") as file:
        YAML().dump(settings.model_dump(mode="json"), file)
    ended = CliRunner().invoke(app, ["promote", "leap"])
    assert ended.exit_code != 0
    assert isinstance(ended.exception, UserError)
    assert "tracking.enabled is false" in str(ended.exception)
    assert not Path("verdicts").exists()
