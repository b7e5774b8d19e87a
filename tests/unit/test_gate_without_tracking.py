"""Where tracking is off the gate judges and writes its verdict; what needs the registry says so."""

from pathlib import Path

import pytest
from made_evidence import made_settings, write_evidence
from ruamel.yaml import YAML
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.core.project import Project
from leap.core.settings import Settings
from leap.gate.judgement import judge_checkpoint
from leap.registry.promotion import synchronise


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    made = made_settings(tracking={"enabled": False})
    for variant in ("baseline", "leap", "fixed_depth"):
        write_evidence(tmp_path, made, variant)
    return made


def test_nothing_is_registered(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    write_with_checksum(Path("verdicts/leap-1.json"), judge_checkpoint(settings, "leap", 1)[1])
    assert synchronise(settings, Project()) == {}
    assert "nothing is logged or registered: tracking.enabled is false" in caplog.text
    assert not Path("mlruns").exists()


def test_promotion_is_refused(settings: Settings) -> None:
    with Path("params.yaml").open("w") as file:
        YAML().dump(settings.model_dump(mode="json"), file)
    ended = CliRunner().invoke(app, ["promote", "leap"])
    assert ended.exit_code != 0
    assert isinstance(ended.exception, UserError)
    assert "tracking.enabled is false" in str(ended.exception)
    assert not Path("verdicts").exists()
