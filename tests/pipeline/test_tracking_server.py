"""Tracking and registry against a real MLflow server, up, down and up again."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_evidence
import pytest
import requests
from made_evidence import made_settings, write_checkpoint, write_evidence
from made_store import log, place
from temporary_repository import MARK, SECRETS, files_with
from tracking_server import Server

import leap
from leap.core.errors import UserError
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash
from leap.registry.versions import history
from leap.tracking import Tracking

# A server of its own on a loopback port: the only test that opens a socket.
pytestmark = [pytest.mark.server, pytest.mark.enable_socket]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def settings(server: Server) -> Settings:
    return made_settings(tracking={"uri": server.uri, "experiment": "test"})


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def the_run(settings: Settings) -> Any:
    (run,) = Tracking.open(settings, required=True).find({"leap.variant": "leap"})
    return run


def test_down_then_up(project: Path, server: Server, settings: Settings, caplog: Any) -> None:
    write_evidence(project, settings, "leap")
    assert not log(settings, "leap")
    with Tracking.open(settings).training_run("leap", 1, {}) as live:
        live.metrics(1, {"loss": 1.0})
        live.finish("c" * 64)
    assert "cannot be used" in caplog.text
    assert "`dvc repro` or `leap track` logs what is missing" in caplog.text
    with pytest.raises(UserError, match=r"tracking.uri: MLflow at http://127.0.0.1:\d+ cannot be used"):
        Tracking.open(settings, required=True)

    server.start()
    assert log(settings, "leap")
    run = the_run(settings)
    assert run.data.tags["leap.checkpoint"] == checkpoint_hash(Path("models/leap-1"))
    assert run.data.metrics["exit/rate"] == 0.9
    assert run.data.metrics["loss/total"] == 1.0
    client = Tracking.open(settings).client
    assert client is not None
    assert len(client.get_metric_history(run.info.run_id, "layers/similarity_to_final")) == 4
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"evidence"}
    local = client.download_artifacts(run.info.run_id, "evidence/latency.json", str(project))
    assert Path(local).read_bytes() == Path("evaluations/leap-1/latency.json").read_bytes()
    assert not Path("mlruns/mlflow.db").exists()

    assert log(settings, "leap")
    assert len(client.get_metric_history(run.info.run_id, "loss/total")) == 3


def test_promotion_on_a_server(project: Path, server: Server, settings: Settings) -> None:
    write_evidence(project, settings, "leap")
    log(settings, "leap")
    placed = place(settings, "leap")
    assert placed.aliases == ["champion"]
    assert place(settings, "leap") == placed
    import mlflow

    local = mlflow.artifacts.download_artifacts("models:/leap-docstrings@champion", dst_path=str(project / "got"))
    assert next(Path(local).rglob("model.safetensors")).read_bytes() == b"leap-1"


def test_secrets_for_the_server_are_used_and_never_written(
    project: Path, server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("DEBUG")
    if server.process is None:
        server.start()
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    sent = []
    original = requests.Session.send

    def noted(session: requests.Session, request: requests.PreparedRequest, **options: Any) -> Any:
        sent.append(request.headers.get("Authorization", ""))
        return original(session, request, **options)

    monkeypatch.setattr(requests.Session, "send", noted)
    write_evidence(project, settings, "leap")
    with Tracking.open(settings, required=True).training_run("leap", 2, {"a": 1}) as live:
        live.metrics(1, {"loss": 1.0})
        live.finish("d" * 64)
    assert log(settings, "leap")
    assert any(header.startswith("Basic ") for header in sent)  # the server was logged in to
    assert files_with(MARK, project) == []
    encoded = base64.b64encode(f"user:{SECRETS['MLFLOW_TRACKING_PASSWORD']}".encode()).decode()
    for text in (MARK, encoded):
        assert files_with(text, server.folder) == []
        assert text not in caplog.text


def test_a_password_in_a_uri_is_struck_out(project: Path, settings: Settings, caplog: Any) -> None:
    caplog.set_level("DEBUG")
    closed = settings.tracking.model_copy(update={"uri": f"http://user:{MARK}@127.0.0.1:9"})
    down = settings.model_copy(update={"tracking": closed})
    assert Tracking.open(down).client is None
    with pytest.raises(UserError, match=r"MLflow at http://user:\*\*\*@127.0.0.1:9 cannot be used") as error:
        Tracking.open(down, required=True)
    assert MARK not in str(error.value) + caplog.text


PROMOTE = """
import sys
from pathlib import Path
from made_evidence import made_settings
from made_store import place

settings = made_settings(tracking={"uri": sys.argv[1], "experiment": "test"}, gate={"registered_model": "race"})
place(settings, sys.argv[2], float(sys.argv[3]))
"""


def test_processes_of_one_project_that_promote_at_once(project: Path, server: Server, settings: Settings) -> None:
    if server.process is None:
        server.start()
    path = f"{Path(leap.__file__).parents[1]}{os.pathsep}{Path(made_evidence.__file__).parent}"
    processes = []
    for variant, value in (("leap", 0.80), ("elastic", 0.78), ("leap", 0.80)):
        write_checkpoint(project / "models" / f"{variant}-1", variant.encode())
        command = [sys.executable, "-c", PROMOTE, server.uri, variant, str(value)]
        environment = {**os.environ, "PYTHONPATH": path}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    race = made_settings(tracking={"uri": server.uri, "experiment": "test"}, gate={"registered_model": "race"})
    versions = history(Tracking.open(race, required=True))
    assert sorted(item.name for item in versions) == ["elastic-1", "leap-1"]
    held = {alias: item.name for item in versions for alias in item.aliases}
    assert held.pop("champion") == "leap-1"
    assert held in ({"candidate": "elastic-1"}, {"previous": "elastic-1"})


def test_a_server_that_goes_while_a_training_runs(project: Path, server: Server, settings: Settings) -> None:
    with Tracking.open(settings, required=True).training_run("baseline", 1, {}) as live:
        live.metrics(20, {"loss": 3.0})
        server.stop()
        for step in range(40, 140):
            live.metrics(step, {"loss": 1.5})
        write_evidence(project, settings, "baseline")
        live.finish(checkpoint_hash(Path("models/baseline-1")))
    assert not log(settings, "baseline")
