"""The real `dvc repro` on a tiny profile in a temporary repository, and what a user does next."""

import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest
from killing import Span, finish, kill_at_random, table
from same_results import unfinished
from temporary_repository import MARK, Repository, files_with
from tiny_pipeline import TINY


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Reproduced once; the tests run in the order of the file and build on it."""
    repository = Repository(tmp_path_factory.mktemp("pipeline") / "project", "embedded", TINY)
    repository.run("dvc", "repro")
    repository.commit()
    return repository


def test_the_summary_has_what_others_read(repository: Repository) -> None:
    summary = repository.json("reports/summary.json")
    assert summary["profile"] == "embedded"
    assert set(summary["variants"]) == {"baseline", "leap"}
    leap = summary["variants"]["leap"]
    assert [layer["layer"] for layer in leap["layers"]] == [1, 2, 3]
    for key in (
        "similarity_to_final",
        "stability",
        "exit_rate_converged",
        "exit_rate_near_final",
        "nn_at_10",
        "nn_fail_50",
    ):
        assert key in leap["layers"][1]
    assert leap["layers"][2]["similarity_to_final"] == pytest.approx(1.0)
    assert 2 <= leap["exit"]["expected_layers"] <= 3
    assert leap["exit"]["layer_reduction"] == pytest.approx(3 / leap["exit"]["expected_layers"])
    assert leap["sts"]["ci95"][0] <= leap["sts"]["spearman_exit"] <= leap["sts"]["ci95"][1]
    assert 0 <= leap["retrieval"]["docstrings"]["ndcg_at_10_exit"] <= 1
    assert leap["gate"]["passed"] in (True, False)
    assert {row["path"] for row in leap["latency"]} == {"full", "exit", "monitored", "truncated"}
    for file in ("report.html", "report.md", "data_docs/index.html"):
        assert (repository.root / "reports" / file).stat().st_size > 1000


def test_a_second_run_does_nothing_and_leaves_git_clean(repository: Repository) -> None:
    assert "up to date" in repository.run("dvc", "repro")
    assert repository.run("git", "status", "--short") == ""


def test_a_study_runs_alone_and_then_shows_in_the_report(repository: Repository) -> None:
    assert not (repository.root / "studies" / "small.json").exists()  # `dvc repro` left it alone
    assert "make study-small" in (repository.root / "reports" / "report.md").read_text()
    target = "studies/dvc.yaml:study@small"
    assert repository.ran(repository.run("dvc", "repro", target)) == {target}
    study = repository.json("studies/small.json")
    assert set(study["variants"]) == {"leap", "output_only"}
    leap = study["variants"]["leap"]["seeds"]["1"]
    assert [row["strategy"] for row in leap["thresholds"]] == ["converged", "near_final"]
    assert leap["depth"] == 3
    figures = repository.json("studies/metrics/small.json")["leap"]
    assert figures["spearman_exit"] == leap["spearman_exit"]
    weights = repository.root / "studies/work/small/leap-1/model/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert "up to date" in repository.run("dvc", "repro", target)
    repository.run(sys.executable, "stages/study.py", "--study", "small")
    assert weights.stat().st_mtime_ns == before  # the trained student is kept
    repository.run("dvc", "repro", "--single-item", "--force", "report")
    assert "two small ones" in (repository.root / "reports" / "report.html").read_text()
    assert "make study-small" not in (repository.root / "reports" / "report.md").read_text()
    repository.commit()


def test_every_checkpoint_has_one_finished_run_with_its_figures(repository: Repository) -> None:
    database = sqlite3.connect(repository.root / "mlruns" / "mlflow.db")
    runs = database.execute(
        "select status from runs join tags using (run_uuid) where key = 'leap.checkpoint'"
    ).fetchall()
    assert runs == [("FINISHED",), ("FINISHED",)]
    tags = dict(database.execute("select value, run_uuid from tags where key = 'leap.variant'"))
    names = {name for (name,) in database.execute("select key from metrics where run_uuid = ?", (tags["leap"],))}
    for name in ("loss/total", "loss/exit", "loss/final", "layers/similarity_to_final"):
        assert name in names


@pytest.mark.parametrize(
    ("module", "stages"),
    [
        ("src/leap/evaluate/diagnosis.py", {"diagnose@baseline-1", "diagnose@leap-1"}),
        ("src/leap/extract/docstrings.py", {"extract"}),
        ("src/leap/report/plots.py", {"report"}),
        ("stages/validate.py", {"validate"}),
    ],
)
def test_editing_a_module_reruns_the_stages_that_use_it(
    repository: Repository, module: str, stages: set[str]
) -> None:
    path = repository.root / module
    text = path.read_text()
    path.write_text(text + "\n# edited\n")
    changed = repository.changed()
    path.write_text(text)
    assert changed == stages
    assert repository.changed() == set()


def test_a_new_variant_runs_only_what_is_new_also_after_kills(repository: Repository, tmp_path: Path) -> None:
    """Four kills of DVC and its stage; many more are in tests/faults/test_kills.py."""
    more = "variants.strong={description: more exit loss, loss: {beta: 0.8}}"
    repository.write(more)
    wanted = Counter({f"{name}@strong-1": 1 for name in ("train", "diagnose", "benchmark_latency", "gate")})
    times = dict.fromkeys(wanted, Span(process=2.0, whole=3.0))
    kills = kill_at_random(repository, times, wanted, seed=3, alone=False, logs=tmp_path)
    assert len(kills) >= 3, table(kills)
    finish(repository, tmp_path / "last.log")
    ran = repository.ran("".join(log.read_text(errors="replace") for log in tmp_path.iterdir()))
    assert list(unfinished(repository.root)) == []
    # The settings are validated, the cache finds itself whole, the report shows all variants.
    ran -= {"settings", "cache_teacher", "report"}
    assert ran == {
        f"{stage}@strong-1{suffix}"
        for stage, suffix in {
            "train": "",
            "diagnose": "",
            "evaluate_sts": "-software",
            "evaluate_retrieval": "-docstrings",
            "benchmark_latency": "",
            "gate": "",
        }.items()
    }
    repository.commit()


def test_another_threshold_trains_nothing(repository: Repository) -> None:
    weights = repository.root / "models" / "leap-1" / "model.safetensors"
    before = repository.json("evaluations/leap-1/diagnose.json")["exit"]["expected_layers"]
    checkpoint = weights.read_bytes()
    repository.write("variants.leap.exit={threshold: 1.0}")
    output = repository.run("dvc", "repro", "diagnose@leap-1")
    assert "is already trained from these settings, data and code: kept" in output
    assert weights.read_bytes() == checkpoint
    after = repository.json("evaluations/leap-1/diagnose.json")["exit"]["expected_layers"]
    assert after > before or before == after == 3
    repository.run("git", "checkout", "-q", ".")
    repository.run("dvc", "checkout", "-q")


def test_an_experiment_with_another_setting_shows_in_mlflow(repository: Repository) -> None:
    repository.run("dvc", "exp", "run", "-S", "train.learning_rate=3e-5", "train@leap-1")
    database = sqlite3.connect(repository.root / "mlruns" / "mlflow.db")
    rates = database.execute("select value from params where key = 'train.learning_rate'").fetchall()
    assert [float(rate) for (rate,) in rates].count(3e-5) == 1


@pytest.mark.parametrize(
    ("changes", "stage", "message"),
    [
        (("data.folder=nowhere",), "extract", "nowhere"),
        (("similarity.software.columns={score: grade}",), "extract", "grade"),
        (("data.sources.docstrings.packages=[no-such-package]",), "extract", "no-such-package"),
        ((f"teacher.sha256='{'0' * 64}'",), "cache_teacher", "sha256"),
        (("data.max_sentences=null", "validation.min_rows=100000"), "validate", "100000"),
    ],
)
def test_bad_input_is_one_message_and_nothing_half_written(
    repository: Repository, changes: tuple[str, ...], stage: str, message: str
) -> None:
    results = [path for path in (repository.root / "data").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in results}
    repository.write(*changes)
    output = repository.run(sys.executable, f"stages/{stage}.py", expect=1)
    assert output.count("error: ") == 1
    assert message in output
    assert "Traceback" not in output
    kept = {path: path.read_bytes() for path in (repository.root / "data").rglob("*") if path.is_file()}
    if stage != "validate":  # which leaves its page and its results to be looked at
        assert kept == before
    repository.write()


def test_no_secret_of_the_environment_is_written_anywhere(repository: Repository) -> None:
    """Every command above ran with marked secrets in its environment, and said none of them."""
    assert files_with(MARK, repository.root) == [".git/config"]  # where the test itself put one
