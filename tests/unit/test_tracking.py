import getpass
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_checkpoint, write_evidence
from made_store import bare_model, copy_tables, enter_project

import leap
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.core.project import Project
from leap.core.settings import Settings
from leap.core.settings.data import DataSettings
from leap.evidence.evidence_file import checkpoint_hash, model_hash
from leap.registry.checkpoint_run import log_checkpoint
from leap.registry.project_runs import log_report
from leap.registry.run_content import evidence_numbers, plain_numbers
from leap.registry.run_writer import RunWriter
from leap.registry.ui_links import ui_links
from leap.tracking import Tracking
from leap.tracking import training_run as run_module
from leap.tracking.entities import flat, history_metrics, history_numbers
from leap.tracking.store import DATABASE, guard

SETTINGS = made_settings()
# A process of its own finds what this one finds, wherever it is started.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leap.__file__).absolute().parents[1])}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models are logged as their bare folder: MLflow's check of the environment takes seconds."""

    monkeypatch.setattr("leap.registry.checkpoint_run.write_model_folder", bare_model)
    return enter_project(tmp_path / "project", monkeypatch)


def log(variant: str = "leap", settings: Settings = SETTINGS) -> None:
    log_checkpoint(Tracking.open(settings, required=True), Project().checkpoint(variant, 1))


def the_runs(tracking: Tracking | None = None) -> list[Any]:
    tracking = tracking or Tracking.open(SETTINGS)
    return tracking.find({"leap.profile": "embedded"})


def judge(variant: str = "leap", passed: bool = True) -> None:
    folder = Path(f"models/{variant}-1")
    hashes = {"checkpoint": checkpoint_hash(folder), "model": model_hash(folder)}
    write_with_checksum(Path(f"verdicts/{variant}-1.json"), {**hashes, "passed": passed})


def history(metric: str) -> dict[int, float]:
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = the_runs(tracking)
    points = tracking.client.get_metric_history(run.info.run_id, metric)
    assert len(points) == len({point.step for point in points}), "logged twice"
    return {point.step: point.value for point in points}


def test_importing_the_package_imports_no_mlflow() -> None:
    code = "import sys, leap.registry.promotion, leap.registry.versions; print('mlflow' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True).stdout == "False\n"


def test_evidence_as_numbers() -> None:
    content = {
        "kind": "sts",
        "seed": 1,
        "exit_rule": {"threshold": 0.95},
        "n": 3,
        "task": "similarity",
        "ci95": [0.1, 0.3],
        "spearman_by_layer": [0.2, None, 0.4],
        "rows": [
            {"device": "cpu", "path": "exit", "length": length, "batch": 8, "over": 2, "ms_p50": 2.0}
            for length in ("sentences", 128)
        ],
        "by_threshold": [{"threshold": 0.93, "batch": 1, "tokens": 14.2, "speed_up": 1.5}],
        "by_length": [{"tokens": [17, 32], "rate": 0.5}],
        "layers": [{"layer": 2, "stability": None, "viable": True}],
        "exit": {"layers": {"6": 4}, "rate": float("nan")},
    }
    assert sorted(evidence_numbers("sts/x", content)) == [
        ("sts/x/by_length/rate", 0.5, 17),
        ("sts/x/by_threshold/speed_up", 1.5, 93),
        ("sts/x/ci95_high", 0.3, 0),
        ("sts/x/ci95_low", 0.1, 0),
        ("sts/x/cpu/exit/128/ms_p50", 2.0, 8),
        ("sts/x/cpu/exit/sentences/ms_p50", 2.0, 8),
        ("sts/x/exit/layers", 4.0, 6),
        ("sts/x/layers/viable", 1.0, 2),
        ("sts/x/n", 3.0, 0),
        ("sts/x/spearman_by_layer", 0.2, 1),
        ("sts/x/spearman_by_layer", 0.4, 3),
    ]


def test_rows_that_a_name_and_step_cannot_tell_apart_stay_in_the_file() -> None:
    rows = [{"type": "expect_a", "observed": 1.0}, {"type": "expect_b", "observed": 2.0}]
    assert plain_numbers({"expectations": rows, "kept": 7}, "validate/") == [("validate/kept", 7.0, 0)]


def test_a_history_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text('{"step": 20, "loss": 3.0, "note": "x"}\n{"step": 40, "lo')
    assert history_numbers(history) == [("loss/total", 3.0, 20)]


def test_metrics_are_named_by_the_section_that_their_charts_stand_in() -> None:
    row = {"step": 20, "loss": 3.0, "loss_exit": 1.0, "epoch": 0.1, "grad_norm": 2.0}
    assert history_metrics(row) == {
        "loss/total": 3.0,
        "loss/exit": 1.0,
        "train/epoch": 0.1,
        "train/grad_norm": 2.0,
    }
    assert evidence_numbers("diagnose", {"n": 5, "exit": {"rate": 0.5}}) == [
        ("diagnose/n", 5.0, 0),
        ("exit/rate", 0.5, 0),
    ]
    assert evidence_numbers("latency", {"speed_up": 2.0, "protocol": {"warmup": 5}}) == [
        ("latency/speed_up", 2.0, 0)
    ]


def test_the_experiment_opens_as_what_it_is(project: Path) -> None:
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    tags = tracking.client.get_experiment(str(tracking.experiment)).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert "docs/tracking.md" in tags["mlflow.note.content"]
    # The view that `make ui` links to, in the form of MLflow's own "Share" (its page: mlflow.sharedViewState.*).
    view = json.loads(tags["mlflow.sharedViewState.leap"])
    assert view["selectedColumns"][:3] == ["tags.`leap.verdict`", "metrics.`layers`", "metrics.`exit_rate`"]
    assert ui_links(SETTINGS, "1").split() == [
        "runs", "http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=leap",
        "models", "http://127.0.0.1:5000/#/models/leap-docstrings",
    ]  # fmt: skip


def test_settings_as_flat_text() -> None:
    assert flat({"a": {"b": 1, "c": [0.1, 0.6]}, "d": None, "e": "x"}) == {
        "a.b": "1",
        "a.c": "[0.1, 0.6]",
        "d": "null",
        "e": "x",
    }


def test_a_checkpoint_gets_its_run_with_everything(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    judge()
    Path("data/sentences.parquet").write_bytes(b"text")
    log()
    (run,) = the_runs()
    assert run.info.status == "FINISHED"
    tags = run.data.tags
    assert tags["leap.checkpoint"] == checkpoint_hash(Path("models/leap-1"))
    assert tags["leap.model"] == model_hash(Path("models/leap-1"))
    assert tags["leap.seed"] == "1"
    assert tags["leap.verdict"] == "passed"
    assert (tags["mlflow.user"], tags["mlflow.source.name"]) == (getpass.getuser(), "stages/train.py")
    # The second variant of the settings has the second colour of the report's pictures.
    assert tags["mlflow.runColor"] == "#D55E00"
    params = run.data.params
    assert (params["loss.margin"], params["exit.threshold"]) == ("sigmoid", "0.95")
    assert (params["data.held_out"], params["teacher.kind"]) == ("0.25", "package")
    assert params["evaluation.bootstrap"] == "1000"
    metrics = run.data.metrics
    assert (metrics["exit/rate"], metrics["sts/software/spearman_exit"]) == (0.9, 0.79)
    assert (metrics["exit_rate"], metrics["sts_exit"], metrics["layers"]) == (0.9, 0.79, 3.1)
    assert history("layers/similarity_to_final") == {1: 0.4, 2: 0.7, 3: 0.96, 4: 1.0}
    assert history("loss/total") == {20: 3.0, 40: 1.5, 60: 1.0}
    inputs = {item.dataset.name: item for item in run.inputs.dataset_inputs}
    assert set(inputs) == {"sentences", "software", "docstrings", "second"}
    assert inputs["sentences"].dataset.digest == hashlib.sha256(b"text").hexdigest()[:32]
    assert inputs["sentences"].tags[0].value == "training"
    artifacts = Path(f"mlruns/artifacts/{run.info.run_id}/artifacts")
    files = {str(file.relative_to(artifacts)) for file in artifacts.rglob("*") if file.is_file()}
    assert files == {
        "evidence/diagnose.json",
        "evidence/latency.json",
        "evidence/sts/software.json",
        "evidence/retrieval/docstrings.json",
        "evidence/retrieval/second.json",
        "verdict/leap-1.json",
    }


def test_a_checkpoint_has_one_logged_model_with_its_figures(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    judge()
    log()
    log()
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = the_runs(tracking)
    (result,) = tracking.client.search_logged_models([str(tracking.experiment)])
    model = tracking.client.get_logged_model(result.model_id)
    assert (model.name, model.source_run_id, str(model.status)) == ("leap-1", run.info.run_id, "READY")
    figures = {metric.key: metric.value for metric in model.metrics}
    assert (figures["sts_exit"], figures["exit/rate"]) == (0.79, 0.9)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]


def test_a_second_time_logs_nothing_and_a_new_file_only_itself(project: Path, monkeypatch) -> None:
    write_evidence(project, SETTINGS, "leap")
    log()
    from mlflow import MlflowClient

    calls: list[str] = []
    for name in ("log_batch", "log_artifact", "log_artifacts", "create_run", "set_terminated"):
        original = getattr(MlflowClient, name)

        def counted(self: Any, *args: Any, name: str = name, original: Any = original, **kw: Any) -> Any:
            calls.append(name)
            return original(self, *args, **kw)

        monkeypatch.setattr(MlflowClient, name, counted)
    log()
    assert calls == []
    judge()
    log()
    assert calls.count("log_artifact") == 1


def test_what_a_kill_left_half_logged_is_completed_and_has_no_value_twice(project: Path, monkeypatch) -> None:
    write_evidence(project, SETTINGS, "leap")
    done = RunWriter.done

    def killed(self: RunWriter, name: str, checksum: str) -> None:
        if name == "diagnose":
            raise KeyboardInterrupt
        done(self, name, checksum)

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "done", killed)
        with pytest.raises(KeyboardInterrupt):
            log()
    assert history("exit/rate") == {0: 0.9}
    log()
    assert history("exit/rate") == {0: 0.9}
    assert history("layers/similarity_to_final") == {1: 0.4, 2: 0.7, 3: 0.96, 4: 1.0}
    assert history("sts/software/spearman_exit") == {0: 0.79}


def test_a_verdict_becomes_a_tag(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    judge(passed=False)
    log()
    assert the_runs()[0].data.tags["leap.verdict"] == "refused"


def test_evidence_that_was_measured_again_is_another_run(project: Path) -> None:
    """No metric has two values at one step."""
    write_evidence(project, SETTINGS, "leap")
    log()
    write_evidence(project, SETTINGS, "leap", latency={"speed_up": 1.5})
    log()
    log()
    newest, oldest = the_runs()
    assert (newest.data.metrics["latency/speed_up"], oldest.data.metrics["latency/speed_up"]) == (1.5, 1.25)
    assert newest.data.metrics["loss/total"] == oldest.data.metrics["loss/total"] == 1.0


def test_evidence_of_an_older_checkpoint_stays_out_of_the_new_ones_run(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    write_checkpoint(Path("models/leap-1"), b"trained again")
    log()
    (run,) = the_runs()
    assert "exit/rate" not in run.data.metrics
    assert run.data.metrics["loss/total"] == 1.0


def test_variants_with_the_same_ready_made_checkpoint_have_their_own_runs(project: Path) -> None:
    for variant in ("leap", "baseline"):
        write_evidence(project, SETTINGS, variant, weights=b"the same")
        log(variant)
    log()
    assert sorted(run.info.run_name for run in the_runs()) == ["baseline-1", "leap-1"]


def test_another_exit_rule_is_another_run_without_a_step_or_parameter_of_the_old_one(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    with Tracking.open(SETTINGS).training_run("leap", 1, SETTINGS.variant("leap").model_dump(mode="json")) as run:
        run.metrics(20, {"loss": 3.0})
        run.finish(checkpoint_hash(Path("models/leap-1")))
    log()
    changed = made_settings(exit={"threshold": 0.97})
    Path("models/leap-1/leap.json").write_text("the new rule")
    write_evidence(project, changed, "leap", diagnose={"exit": {"rate": 0.5, "layers": {"4": 500}}})
    log(settings=changed)
    newest, oldest = the_runs()
    assert (newest.data.params["exit.threshold"], oldest.data.params["exit.threshold"]) == ("0.97", "0.95")
    client = Tracking.open(SETTINGS).client
    assert client is not None
    layers = client.get_metric_history(newest.info.run_id, "exit/layers")
    assert {point.step: point.value for point in layers} == {4: 500.0}
    assert len(client.get_metric_history(newest.info.run_id, "loss/total")) == 3
    Path("models/leap-1/leap.json").unlink()
    write_evidence(project, SETTINGS, "leap")
    log()
    assert len(the_runs()) == 2  # the earlier rule has its run already


def test_the_project_can_be_moved(project: Path, tmp_path: Path, monkeypatch) -> None:
    write_evidence(project, SETTINGS, "leap")
    log()
    moved = tmp_path / "elsewhere"
    shutil.move(project, moved)
    monkeypatch.chdir(moved)
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = the_runs(tracking)
    local = tracking.client.download_artifacts(run.info.run_id, "evidence/latency.json", str(tmp_path))
    assert Path(local).read_bytes() == Path("evaluations/leap-1/latency.json").read_bytes()
    (model,) = tracking.client.search_logged_models([str(tracking.experiment)])
    assert model.artifact_location.startswith(moved.as_uri())
    log()
    assert not project.exists()


@pytest.mark.parametrize("location", ["s3://bucket/mlruns/artifacts", "file:///mnt/shared/artifacts"])
def test_artefacts_in_a_place_that_the_user_chose_stay_there(project: Path, location: str) -> None:
    Tracking.open(SETTINGS)
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute("UPDATE experiments SET artifact_location = ?", (location,))
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    assert tracking.create_run("next", {}).info.artifact_uri.startswith(f"{location}/")


def test_a_training_is_followed_live_and_its_history_is_logged_once(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    tracking = Tracking.open(SETTINGS)
    with tracking.training_run("leap", 1, {"train.batch_size": 64}) as run:
        run.metrics(20, {"loss": 3.0, "epoch": 0.1})
        assert the_runs(tracking)[0].info.status == "RUNNING"
        run.finish(checkpoint_hash(Path("models/leap-1")))
    assert the_runs(tracking)[0].info.status == "FINISHED"
    log()
    assert history("loss/total") == {20: 3.0, 40: 1.5, 60: 1.0}
    assert the_runs()[0].data.params["loss.alpha"] == "0.3"


def test_numbers_held_back_to_save_time_are_sent_at_the_end(project: Path, monkeypatch) -> None:
    monkeypatch.setattr(run_module, "SHARE", 1e-9)
    with Tracking.open(SETTINGS).training_run("leap", 1, {}) as run:
        for step in (1, 2, 3):
            run.metrics(step, {"loss": float(step)})
        assert history("loss/total") == {1: 1.0}
        run.finish("c" * 64)
    assert history("loss/total") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_run_that_has_its_checkpoint_but_not_its_end_is_ended(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    assert tracking.experiment is not None
    tags = {"leap.variant": "leap", "leap.seed": "1", "leap.profile": "embedded"}
    tags["leap.checkpoint"] = checkpoint_hash(Path("models/leap-1"))
    tracking.client.create_run(tracking.experiment, tags=tags)
    log()
    assert [run.info.status for run in the_runs()] == ["FINISHED"]


def test_the_same_bits_trained_again_leave_one_run(project: Path) -> None:
    write_evidence(project, SETTINGS, "leap")
    log()
    with Tracking.open(SETTINGS).training_run("leap", 1, {}) as run:
        run.finish(checkpoint_hash(Path("models/leap-1")))
    assert len(the_runs()) == 1


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "KILLED"), (SystemExit, "KILLED"), (ValueError, "FAILED")]
)
def test_a_training_that_stops_is_closed(project: Path, error: type[BaseException], status: str) -> None:
    with pytest.raises(error), Tracking.open(SETTINGS).training_run("leap", 1, {}):
        raise error
    assert the_runs()[0].info.status == status
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_closes_the_run(project: Path) -> None:
    with pytest.raises(SystemExit), Tracking.open(SETTINGS).training_run("leap", 1, {}):
        signal.raise_signal(signal.SIGTERM)
    assert the_runs()[0].info.status == "KILLED"


def test_a_handler_of_the_program_is_left_in_place(project: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with Tracking.open(SETTINGS).training_run("leap", 1, {}) as run:
            os.kill(os.getpid(), signal.SIGTERM)
            run.finish("c" * 64)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert the_runs()[0].info.status == "FINISHED"


def test_a_run_left_open_by_a_dead_process_is_closed_by_the_next(project: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    assert tracking.experiment is not None
    owner = f"{socket.gethostname()}:{dead.pid}"
    tags = {"leap.variant": "leap", "leap.seed": "1", "leap.profile": "embedded", "leap.process": owner}
    tracking.client.create_run(tracking.experiment, tags=tags)
    with Tracking.open(SETTINGS).training_run("leap", 1, {}) as run:
        run.finish("c" * 64)
    assert sorted(r.info.status for r in the_runs(tracking)) == ["FINISHED", "KILLED"]


def test_a_run_of_a_living_process_or_another_machine_is_left_alone(project: Path) -> None:
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    assert tracking.experiment is not None
    tags = {"leap.variant": "leap", "leap.seed": "1", "leap.profile": "embedded"}
    owners = [f"{socket.gethostname()}:{os.getppid()}", "elsewhere:1"]
    for owner in owners:
        tracking.client.create_run(tracking.experiment, tags={**tags, "leap.process": owner})
    with Tracking.open(SETTINGS).training_run("leap", 1, {}) as run:
        run.finish("c" * 64)
    assert sorted(r.info.status for r in the_runs(tracking)) == ["FINISHED", "RUNNING", "RUNNING"]


def test_a_report_run_that_a_kill_left_open_is_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    folder = project / "reports"
    folder.mkdir()
    for name in ("report.html", "paper.html", "report.md", "summary.json"):
        (folder / name).write_text(name)

    class Killed(BaseException):
        """A kill: no program catches it."""

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    for name in ("log_artifact", "log_batch"):
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, name, killed)
            with pytest.raises(Killed):
                log_report(Tracking.open(SETTINGS), Project())
        log_report(Tracking.open(SETTINGS), Project())
        (run,) = Tracking.open(SETTINGS).find({"leap.report": "embedded"})
        assert run.info.status == "FINISHED"
        (folder / "report.html").write_text(name)


def test_a_deleted_experiment_is_restored(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    tracking.client.delete_experiment(str(tracking.experiment))
    again = Tracking.open(SETTINGS, required=True)
    assert again.experiment == tracking.experiment
    assert "experiment leap-docstrings was deleted there: it is restored" in caplog.text
    again.create_run("x", {})


def test_an_experiment_that_was_created_by_hand_gets_the_view(project: Path) -> None:
    client = Tracking.open(SETTINGS).client
    assert client is not None
    by_hand = client.create_experiment("by hand")
    Tracking.open(made_settings(tracking={"experiment": "by hand"}))
    assert "mlflow.sharedViewState.leap" in client.get_experiment(by_hand).tags


def test_a_sqlite_uri_is_created_by_one_of_many_as_the_projects_own_store_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for processes: each opens the file of the lock itself."""
    created: list[Path] = []

    def create(database: Path) -> None:
        created.append(database)
        time.sleep(0.2)
        copy_tables(database)

    monkeypatch.setattr("leap.tracking.store._create_tables", create)
    settings = made_settings(tracking={"uri": "sqlite:///other/shared.db", "experiment": "shared"})
    with ThreadPoolExecutor(2) as pool:
        opened = [pool.submit(Tracking.open, settings, required=True) for _ in range(2)]
        assert len({each.result().experiment for each in opened}) == 1
    assert created == [project / "other" / "shared.db"]
    assert Path("other/shared.db").is_file()


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("localhost:5000", "a server is named with its scheme: http://localhost:5000"),
        ("10.0.0.1:80/x", "a server is named with its scheme: http://10.0.0.1:80/x"),
        ("./mlruns", "null is the store of this project"),
        ("mlruns", "null is the store of this project"),
        ("file:///tmp/mlruns", "null is the store of this project"),
    ],
)
def test_a_uri_that_names_no_store_is_refused_with_the_right_spelling(uri: str, hint: str) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri: ") as error:
        made_settings(tracking={"uri": uri})
    assert hint in str(error.value)


def test_experiment_and_registered_model_belong_to_the_data_in_any_profile() -> None:
    assert (SETTINGS.experiment, SETTINGS.registered_model) == ("leap-docstrings", "leap-docstrings")
    text = {"kind": "local", "path": "a.csv", "columns": ["text"]}
    for names, name in ((["tickets"], "leap-tickets"), (list("abcdef"), "leap-a-b-c-and-3-more")):
        data = DataSettings.model_validate({"folder": "in", "sources": dict.fromkeys(names, text)})
        own = SETTINGS.model_copy(update={"data": data})
        assert (own.profile, own.experiment, own.registered_model) == ("embedded", name, name)


class FailingClient:
    """A store that was there at the start and then takes its time to fail."""

    def __init__(self) -> None:
        self.calls = 0

    def create_run(self, *_: Any, **__: Any) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def search_runs(self, *_: Any) -> list[Any]:
        return []

    def log_batch(self, *_: Any, metrics: Any = (), params: Any = (), **__: Any) -> None:
        if params == ():
            self.calls += 1
            time.sleep(0.02)
            raise OSError("no route to host")


def test_a_store_that_fails_slowly_costs_little_and_stops_nothing(project: Path, caplog) -> None:
    client = FailingClient()
    tracking = Tracking(SETTINGS, "http://gone", guard(client), "1")
    started = time.monotonic()
    steps = 0
    with tracking.training_run("leap", 1, {}) as run:
        while time.monotonic() - started < 1.0:
            run.metrics(steps, {"loss": 1.0})
            steps += 1
            time.sleep(0.001)
        run.finish("c" * 64)
    assert 1 <= client.calls <= 4  # 20 ms each at 5 % of the time: every 400 ms, and once at the end
    assert steps > 100
    assert "no route to host; training goes on" in caplog.text


def test_without_a_store_a_training_runs_and_nothing_is_logged(project: Path) -> None:
    with Tracking(SETTINGS, "http://gone", None, None).training_run("leap", 1, {}) as run:
        run.metrics(1, {"loss": 1.0})
        run.finish("c" * 64)
    assert the_runs() == []
