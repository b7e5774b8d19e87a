"""Our figures beside the paper's: the right cell, the difference, its reasons, and nothing made up."""

from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made

from leap.core.files import write_json
from leap.report.differences import LATENCY, QUALITY, RunSetting, reasons
from leap.report.paper import read_paper
from leap.report.paper_comparison import MAKERS, beside
from leap.report.paper_table import Pair, Table
from leap.report.study_results import read_studies
from leap.report.summary import shown

PAPER = read_paper(Path(__file__).parents[2] / "reference" / "paper.yaml")


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    for variant in ("leap", "baseline"):
        write_evidence(tmp_path, made_settings(), variant)
    found: dict[str, Any] = made(made_settings())
    return found


def cells(table: Table, row: str) -> dict[str, Pair]:
    return dict(zip(table.columns, dict(table.rows)[row], strict=True))


def study(name: str, **figures: Any) -> dict[str, Any]:
    return {name: {"variants": {variant: {"seeds": {"1": found}} for variant, found in figures.items()}}}


def test_every_table_of_the_paper_with_measurements_has_one() -> None:
    no_measurements = {"pareto_figure", "diagnostics", "monitoring_alerts"}
    assert set(PAPER.tables) - no_measurements == set(MAKERS) - {"figures"}


def test_main_results_by_the_papers_rule(summary: dict[str, Any]) -> None:
    table = beside(made_settings(), summary, {}, PAPER)["main_results"]
    leap = cells(table, "LEAP-MiniLM-L12")
    assert (leap["Spearman"].paper, leap["Spearman"].ours) == (0.760, 0.79)
    assert leap["Spearman"].difference == pytest.approx(0.03)
    assert leap["E[layers]"].ours == 3.2  # the oracle's, as in the paper
    assert leap["layer reduction, x"].ours == pytest.approx(4 / 3.2)
    assert leap["exit by layer 7"].ours is None  # this model has four layers
    assert cells(table, "all-MiniLM-L12-v2 (external)")["Spearman"].ours is None


def test_layers_that_there_are_not_stay_missing(summary: dict[str, Any]) -> None:
    tables = beside(made_settings(), summary, {}, PAPER)
    assert tables["layer_comparison"].missing
    assert cells(tables["nn_failure"], "layer 4")["NN@10"].ours is not None
    assert cells(tables["nn_failure"], "layer 5")["NN@10"].ours is None
    assert cells(tables["nn_failure"], "layer 5")["NN@10"].difference is None


def test_a_collection_of_ours_never_fills_a_row_of_the_papers(summary: dict[str, Any]) -> None:
    tables = beside(made_settings(), summary, {}, PAPER)
    assert tables["beir"].missing
    assert tables["beir_at_5"].missing
    for variant in ("leap", "baseline"):
        sets = summary["variants"][variant]["retrieval"]
        sets["arguana"] = {**sets["docstrings"], "ndcg_at_10_full": 0.5, "ndcg_at_10_exit": 0.4}
    table = beside(made_settings(), summary, {}, PAPER)["beir"]
    assert cells(table, "arguana")["change by exit"].ours == pytest.approx(-0.2)
    assert cells(table, "average")["leap full"].ours is None  # four of the five sets are missing


def test_studies_fill_their_tables_and_only_those(summary: dict[str, Any]) -> None:
    swept = {
        "strategy": "near_final",
        "threshold": 0.93,
        "spearman": 0.7,
        "expected_layers": 5.0,
        "layer_reduction": 2.4,
        "exit_by_7": 0.9,
        "nn_fail_50": 0.1,
    }
    leaves = {**swept, "strategy": "converged", "threshold": 0.97, "exit_rate": 1.0}
    oracle = {"spearman": 0.6, "layer_reduction": 1.5}
    studies = (
        study("thresholds", tau_098={"thresholds": [swept]})
        | study("strategies", leap={"spearman_full": 0.8, "thresholds": [leaves]})
        | study("ablation", full={"oracle": oracle, "layers": [{"layer": 7, "exit_rate_near_final": 0.8}]})
    )
    tables = beside(made_settings(), summary, studies, PAPER)
    assert cells(tables["pareto"], "theta 0.93")["E[layers]"].ours == 5.0
    assert cells(tables["pareto"], "theta 0.95")["E[layers]"].ours is None
    assert cells(tables["decision_thresholds"], "theta 0.93")["NN@10 below 0.5"].ours == 0.1
    assert cells(tables["exit_strategies"], "converged 0.97")["quality"].ours == pytest.approx(0.875)
    assert cells(tables["ablation"], "full")["exit by layer 7"].ours == 0.8
    assert cells(tables["ablation"], "final only")["Spearman"].ours is None
    assert tables["beta_sensitivity"].missing
    assert tables["beta_sensitivity"].command == "make study-beta"


def test_settings_read_as_they_are_written(summary: dict[str, Any]) -> None:
    pair = cells(beside(made_settings(), summary, {}, PAPER)["hyperparameters"], "train.learning_rate")["value"]
    assert (shown(pair.paper, pair.digits), shown(pair.ours, pair.digits)) == ("5e-05", "0.002")


PAPERS = RunSetting(
    "sentence-transformers/bert-large-nli-mean-tokens", 12, 384, 1_480_000, 10, "stsb", "NVIDIA L4", "fp16", 3
)


def test_the_papers_own_setting_has_no_reasons() -> None:
    assert reasons(PAPERS, PAPER.setting, QUALITY + LATENCY) == []


def test_each_fact_that_differs_is_a_reason() -> None:
    ours = RunSetting("all-MiniLM-L6-v2", 12, 128, 7000, 3, "software", "AMD EPYC", None, 1)
    assert reasons(ours, PAPER.setting, (*QUALITY, "precision")) == [
        "teacher all-MiniLM-L6-v2, paper bert-large-nli-mean-tokens",
        "student width 128, paper 384",
        "training sentences 7,000, paper 1,500,000",
        "epochs 3, paper 10",
        "similarity set software, paper stsb",
        "seeds 1, paper 3",
        "precision unknown, paper fp16",
    ]


def test_a_table_of_other_sizes_is_held_against_those() -> None:
    assert reasons(PAPERS, PAPER.setting, ("sentences", "epochs"), {"sentences": 50_000, "epochs": 2}) == [
        "training sentences 1,480,000, paper 50,000",
        "epochs 10, paper 2",
    ]


def test_a_study_of_other_settings_is_not_shown(tmp_path: Path) -> None:
    settings = made_settings()
    block = settings.studies["beta"].model_dump(mode="json", exclude={"description"})
    write_json(tmp_path / "beta.json", {"settings": block, "profile": "embedded"})
    write_json(tmp_path / "seeds.json", {"settings": block, "profile": "embedded"})
    assert list(read_studies(settings, tmp_path)) == ["beta"]
    write_json(tmp_path / "beta.json", {"settings": block, "profile": "paper"})
    assert read_studies(settings, tmp_path) == {}
