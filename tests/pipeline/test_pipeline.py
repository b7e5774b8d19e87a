"""The real `dvc repro` on a tiny profile in a temporary repository, and what a user does next."""

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from temporary_repository import MARK, Repository, files_with

from leap.core.files import read_json
from leap.data.pairs import read_pairs
from leap.exits import LeapEncoder


def test_the_summary_has_what_others_read(repository: Repository) -> None:
    summary = repository.json("reports/summary.json")
    assert summary["profile"] == "embedded"
    assert set(summary["variants"]) == {"baseline", "leap"}
    leap = summary["variants"]["leap"]
    assert [layer["layer"] for layer in leap["layers"]] == [1, 2, 3]
    for key in ("similarity_to_final", "stability", "exit_rate_converged", "exit_rate_near_final", "nn_at_10"):
        assert key in leap["layers"][1]
    assert leap["layers"][2]["similarity_to_final"] == pytest.approx(1.0)
    assert 2 <= leap["exit"]["expected_layers"] <= 3
    assert leap["exit"]["layer_reduction"] == pytest.approx(3 / leap["exit"]["expected_layers"])
    assert leap["sts"]["ci95"][0] <= leap["sts"]["spearman_exit"] <= leap["sts"]["ci95"][1]
    assert 0 <= leap["retrieval"]["docstrings"]["ndcg_at_10_exit"] <= 1
    assert leap["gate"]["passed"] is True
    for file in ("report.html", "paper.html", "report.md", "data_docs/index.html"):
        assert (repository.root / "reports" / file).stat().st_size > 500


def test_a_second_run_promotes_and_nothing_else(repository: Repository) -> None:
    output = repository.run("dvc", "repro")
    assert repository.ran(output) == {"promote"}
    assert repository.run("git", "status", "--short") == ""
    status = repository.run("dvc", "status")
    assert re.findall(r"^(\S+):$", status, flags=re.MULTILINE) == ["promote"]


def test_metrics_have_a_row_a_checkpoint_and_a_dozen_columns(repository: Repository) -> None:
    output = repository.run("dvc", "metrics", "show")
    head, *rows = output.strip().splitlines()
    assert [row.split()[0] for row in rows] == ["metrics/baseline-1.json", "metrics/leap-1.json"]
    assert len(head.split()) <= 13  # the path and twelve figures
    assert "failed" not in output.lower()


def test_plots_are_drawn_without_a_failure(repository: Repository, tmp_path: Path) -> None:
    output = repository.run("dvc", "plots", "show", "--out", str(tmp_path / "plots"))
    assert "failed" not in output.lower()
    page = (tmp_path / "plots" / "index.html").read_text()
    assert "Similarity of each layer to the last one" in page


def test_the_lock_is_short_and_under_git(repository: Repository) -> None:
    assert "dvc.lock" in repository.run("git", "ls-files").splitlines()
    stages = re.split(r"^  (?=\S)", (repository.root / "dvc.lock").read_text(), flags=re.MULTILINE)
    of_variants = sum(stage.count("\n") for stage in stages if "@" in stage.partition("\n")[0])
    shared = sum(stage.count("\n") for stage in stages) - of_variants
    assert shared + of_variants / 2 * 4 < 3000  # two variants here, four in the embedded profile


def test_every_checkpoint_has_one_finished_run_with_its_figures(repository: Repository) -> None:
    database = sqlite3.connect(repository.root / "mlruns" / "mlflow.db")
    tags = dict(database.execute("select value, run_uuid from tags where key = 'leap.variant'"))
    assert set(tags) >= {"baseline", "leap"}
    runs = database.execute("select status from runs where run_uuid = ?", (tags["leap"],)).fetchall()
    assert runs == [("FINISHED",)]
    names = {name for (name,) in database.execute("select key from metrics where run_uuid = ?", (tags["leap"],))}
    for name in ("loss/total", "loss/exit", "loss/final", "layers/similarity_to_final"):
        assert name in names


@pytest.mark.parametrize(
    ("modules", "stages"),
    [
        (
            ("latency/timing", "extract/docstrings", "report/plots"),
            {"benchmark_latency@baseline-1", "benchmark_latency@leap-1", "extract", "report"},
        ),
        (("registry/versions",), set()),  # reached by promote alone, which is always run
    ],
)
def test_editing_a_module_runs_the_stages_again_whose_packages_hold_it(
    repository: Repository, modules: tuple[str, ...], stages: set[str]
) -> None:
    texts = {path: path.read_text() for path in (repository.root / f"src/leap/{name}.py" for name in modules)}
    for path, text in texts.items():
        path.write_text(text + "\n# edited\n")
    changed = repository.changed()
    for path, text in texts.items():
        path.write_text(text)
    assert changed == stages


def test_a_study_runs_alone_and_then_shows_in_the_report(repository: Repository) -> None:
    assert not (repository.root / "studies" / "small.json").exists()  # `dvc repro` left it alone
    repository.stage("study", "--study", "small")
    study = repository.json("studies/small.json")
    assert set(study["variants"]) == {"leap", "output_only"}
    leap = study["variants"]["leap"]["seeds"]["1"]
    assert [row["strategy"] for row in leap["thresholds"]] == ["converged", "near_final"]
    assert leap["depth"] == 3
    weights = repository.root / "studies/work/small/leap-1/student/model.safetensors"
    before = weights.stat().st_mtime_ns
    repository.stage("study", "--study", "small")
    assert weights.stat().st_mtime_ns == before  # the trained student is used again
    repository.run("dvc", "repro", "--single-item", "--force", "report")
    assert "two small ones" in (repository.root / "reports" / "report.html").read_text()
    assert repository.changed() == set()
    repository.commit()


def test_another_threshold_trains_nothing_and_serves_what_was_judged(repository: Repository) -> None:
    weights = (repository.root / "students/leap-1/model.safetensors").read_bytes()
    repository.write("variants.leap.exit={threshold: 1.0}")
    ran = repository.ran(repository.run("dvc", "repro", "gate@leap-1"))
    assert not {stage.partition("@")[0] for stage in ran} & {"extract", "validate", "train"}
    assert {"calibrate@leap-1", "diagnose@leap-1", "gate@leap-1"} <= ran
    assert (repository.root / "students/leap-1/model.safetensors").read_bytes() == weights
    model = LeapEncoder(repository.root / "models/leap-1", "cpu")
    assert model.rule.threshold == 1.0
    figures = read_json(repository.root / "evaluations/leap-1/diagnose.json", "dvc repro")
    assert repository.json("verdicts/leap-1.json")["model"] == figures["model"]
    sentences = read_pairs(repository.root / "data/similarity/software.parquet").sentences()
    _, layers = model.encode(sentences, return_exit_layers=True)
    assert np.mean(layers) == pytest.approx(figures["exit"]["expected_layers"])
    # Going back finds everything in DVC's cache.
    repository.write()
    assert repository.ran(repository.run("dvc", "repro", "gate@leap-1")) <= {"settings", "cache_teacher"}


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
    output = repository.stage(stage, expect=1)
    assert output.count("error: ") == 1
    assert message in output
    assert "Traceback" not in output
    after = {path: path.read_bytes() for path in (repository.root / "data").rglob("*") if path.is_file()}
    if stage != "validate":  # which leaves its page and its results to be looked at
        assert after == before
    repository.write()


def test_no_secret_of_the_environment_is_written_anywhere(repository: Repository) -> None:
    """Every command above ran with marked secrets in its environment, and said none of them."""
    assert files_with(MARK, repository.root) == [".git/config"]  # where the test itself put one
