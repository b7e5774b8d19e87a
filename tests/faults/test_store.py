"""MLflow's store out of reach: a server that goes and comes, artefacts refused, a locked SQLite."""

import importlib.util
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import made_evidence
import pytest
from made_evidence import made_settings, write_evidence
from made_store import enter_project, log, place
from tracking_server import Server

import leap
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash
from leap.gate.judgement import judge_checkpoint
from leap.registry.promotion import synchronise
from leap.registry.versions import history
from leap.tracking import Tracking
from leap.tracking.store import DATABASE

pytestmark = [pytest.mark.server, pytest.mark.enable_socket]

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{Path(leap.__file__).parents[1]}{os.pathsep}{Path(made_evidence.__file__).parent}",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_project(tmp_path / "project", monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    yield server
    server.stop()


def on(server: Server) -> Settings:
    return made_settings(tracking={"uri": server.uri, "experiment": "test"})


def statuses(settings: Settings) -> list[str]:
    return sorted(run.info.status for run in Tracking.open(settings, required=True).find({}))


def train(settings: Settings, project: Path, variant: str, steps: range) -> Iterator[int]:
    """A training as the stage does it, which lets its caller act after every step."""
    with Tracking.open(settings).training_run(variant, 1, {}) as live:
        for step in steps:
            live.metrics(step, {"loss": 1.0})
            yield step
        write_evidence(project, settings, variant)
        live.finish(checkpoint_hash(Path("models") / f"{variant}-1"))
    log(settings, variant)


def test_a_server_down_at_the_start_in_the_middle_and_at_the_end(
    project: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings = on(server)
    list(train(settings, project, "baseline", range(3)))  # never there
    assert "`dvc repro` or `leap track` logs what is missing" in caplog.text
    server.start()
    for step in train(settings, project, "leap", range(6)):  # goes in the middle, comes back
        if step == 1:
            server.stop()
        if step == 4:
            server.start()
    for step in train(settings, project, "elastic", range(6)):  # goes before the end
        if step == 5:
            server.stop()
    server.start()
    for variant in ("baseline", "leap", "elastic"):
        assert log(settings, variant)
    finished = Tracking.open(settings, required=True).find({}, "attributes.status = 'FINISHED'")
    assert sorted(run.data.tags["leap.variant"] for run in finished) == ["baseline", "elastic", "leap"]
    # The history has 3 lines; whatever the live run could send, each is there once.
    client = Tracking.open(settings).client
    assert client is not None
    for run in finished:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss/total")]
        assert len(steps) == len(set(steps)) >= 3
        assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"evidence"}
    # The run that could not be ended is this process's own: the next process closes it.
    code = (
        "import sys\nfrom made_evidence import made_settings\nfrom leap.tracking import Tracking\n"
        "Tracking.open(made_settings(tracking={'uri': sys.argv[1], 'experiment': 'test'}), required=True)"
    )
    subprocess.run([sys.executable, "-c", code, server.uri], env=ENVIRONMENT, check=True)
    assert "RUNNING" not in statuses(settings)


def measure(project: Path, settings: Settings) -> None:
    """Evidence of leap and of what it is compared with."""
    for variant in ("leap", "baseline", "fixed_depth"):
        write_evidence(project, settings, variant)


def refuses(settings: Settings, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing is to be promoted, a store that fails costs a warning; a model that passes needs it."""
    message = f"MLflow: .*{reason}.*; `dvc repro` or `leap track` logs what is missing"
    assert synchronise(settings, Project()) == {"registry": {}}
    assert re.search(message, caplog.text)
    write_with_checksum(Path("verdicts/leap-1.json"), judge_checkpoint(settings, "leap", 1)[1])
    with pytest.raises(UserError, match=message):
        synchronise(settings, Project())


def test_a_server_whose_artefacts_cannot_be_stored(
    project: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings = on(server)
    server.stored.write_text("a file where the folder of artefacts should be")
    server.start()
    measure(project, settings)
    refuses(settings, "", caplog)
    assert history(Tracking.open(settings, required=True)) == []
    server.stored.unlink()
    assert synchronise(settings, Project())["registry"]["leap-1"]["aliases"] == ["champion"]
    assert set(statuses(settings)) == {"FINISHED"}
    client = Tracking.open(settings).client
    assert client is not None
    models = client.search_logged_models([str(Tracking.open(settings).experiment)])
    assert [str(model.status) for model in models] == ["READY"] * 3


def test_an_artefact_store_that_does_not_answer(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Amazon's own library, which raises what is no OSError, against a port where nobody listens.

    Where it is not installed, that is the fault.
    """
    reason = "127.0.0.1:9" if importlib.util.find_spec("boto3") else "No module named 'boto3'"
    for name, value in {
        "MLFLOW_S3_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    settings = made_settings()
    tracking = Tracking.open(settings, required=True)
    set_location(str(tracking.experiment), "s3://nowhere/artifacts")
    measure(project, settings)
    refuses(settings, reason, caplog)
    assert history(Tracking.open(settings, required=True)) == []
    assert "RUNNING" not in statuses(settings)


def set_location(experiment: str, location: str) -> None:
    with closing(sqlite3.connect(DATABASE)) as database, database:
        change = "update experiments set artifact_location = ? where experiment_id = ?"
        database.execute(change, (location, experiment))


LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect("mlruns/mlflow.db", isolation_level=None)
connection.execute("begin exclusive")
print("locked", flush=True)
time.sleep(float(sys.argv[1]))
connection.execute("rollback")
"""


def locked_for(seconds: float) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", LOCK, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_store_that_is_locked_for_a_moment_is_waited_for(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    lock = locked_for(2)
    assert log(settings, "leap")
    lock.wait()
    lock = locked_for(2)
    assert place(settings, "leap").aliases == ["champion"]
    lock.wait()


def test_a_store_that_stays_locked_stops_no_training(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = made_settings()
    steps = train(settings, project, "leap", range(40))
    next(steps)
    lock = locked_for(600)
    started = time.monotonic()
    assert len(list(steps)) == 39
    assert "database is locked" in caplog.text
    with pytest.raises(UserError, match=r"(registry|MLflow) at sqlite:.* cannot be used: .*database is locked"):
        place(settings, "leap")
    assert time.monotonic() - started < 120
    lock.kill()
    lock.wait()
    assert log(settings, "leap")
    assert place(settings, "leap").aliases == ["champion"]


OPEN = """
from made_evidence import made_settings
from leap.tracking import Tracking
print(Tracking.open(made_settings(), required=True).experiment)
"""


def test_a_store_that_several_create_at_once_while_some_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    generator = random.Random(9)

    def opened() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", OPEN]
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)

    victim = opened()
    while not list(Path("mlruns").glob(".mlflow.db.*.part/mlflow.db")):  # it is creating the store
        assert victim.poll() is None
        time.sleep(0.01)
    time.sleep(generator.uniform(0.0, 0.5))
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not DATABASE.exists()
    others = [opened() for _ in range(3)]
    answers = {process.communicate(timeout=300)[0] for process in others}
    assert [process.returncode for process in others] == [0, 0, 0]
    assert len(answers) == 1
    assert list(Path("mlruns").glob(".*.part")) == []
    with closing(sqlite3.connect(DATABASE)) as database:
        places = dict(database.execute("select name, artifact_location from experiments"))
        assert places["leap-docstrings"] == Path("mlruns/artifacts").absolute().as_uri()
