"""Our figures with the paper's: the right cell, the difference, its reasons, and nothing made up."""

from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made

from leap.core.files import write_json
from leap.core.grid import shown
from leap.report.differences import LATENCY, QUALITY, reasons
from leap.report.paper import read_paper
from leap.report.paper_tables import Pair, Table, look_up, paper_tables
from leap.report.study_results import read_studies

PAPER = read_paper(Path(__file__).parents[2] / "reference" / "paper.yaml")


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    for variant in ("leap", "baseline"):
        write_evidence(tmp_path, made_settings(), variant)
    result: dict[str, Any] = made(made_settings())
    return result


def cells(table: Table, row: str) -> dict[str, Pair]:
    return dict(zip(table.columns, dict(table.rows)[row], strict=True))


def study(name: str, **figures: Any) -> dict[str, Any]:
    return {name: {"variants": {variant: {"seeds": {"1": result}} for variant, result in figures.items()}}}


def test_every_table_of_the_paper_with_measurements_has_columns_of_ours() -> None:
    no_measurements = {"pareto_figure", "diagnostics", "monitoring_alerts"}
    assert {key for key, table in PAPER.tables.items() if not table.columns} == no_measurements
    for table in PAPER.tables.values():
        assert all(any(name in row for row in table.rows) or name.startswith("layer_") for name in table.columns)


def test_main_results_by_the_papers_rule(summary: dict[str, Any]) -> None:
    table = paper_tables(made_settings(), summary, {}, PAPER)["main_results"]
    leap = cells(table, "LEAP-MiniLM-L12")
    assert (leap["Spearman"].paper, leap["Spearman"].ours) == (0.760, 0.79)
    assert leap["Spearman"].difference == pytest.approx(0.03)
    assert leap["E[layers]"].ours == 3.2  # the oracle's, as in the paper
    assert leap["layer reduction, x"].ours == pytest.approx(4 / 3.2)
    assert cells(table, "MiniLM-L12 (baseline)")["Spearman"].ours == 0.80  # full depth
    assert cells(table, "MiniLM-L12 (baseline)")["speed-up, x"].ours == 1.25


def test_what_these_settings_can_never_fill_has_no_cell(summary: dict[str, Any]) -> None:
    tables = paper_tables(made_settings(), summary, {}, PAPER)
    # This model has four layers, and the settings have none of the paper's collections.
    assert "exit by layer 7" not in tables["main_results"].columns
    assert [label for label, _ in tables["nn_failure"].rows] == ["layer 4"]
    assert not {"layer_comparison", "layer_analysis", "beir", "beir_at_5"} & set(tables)
    # all-MiniLM-L12-v2 is no block of the study, so its row cannot fill; all-MiniLM-L6-v2 is one.
    assert "all-MiniLM-L12-v2 (external)" not in dict(tables["main_results"].rows)
    assert [label for label, _ in tables["cross_distillation"].rows] == ["MiniLM-L6-v2, layer-aligned (KL)"]
    # Nobody can time the oracle: the deployable rule is timed at the same theta.
    assert tables["decision_thresholds"].columns == ["speed-up, x", "layer reduction, x", "NN@10 below 0.5"]
    assert not any("deebert" in label for label, _ in tables["figures"].rows)


def test_a_cell_that_can_fill_but_has_not_yet_names_the_command(summary: dict[str, Any]) -> None:
    tables = paper_tables(made_settings(), summary, {}, PAPER)
    for name, study in (("pareto", "strategies"), ("ablation", "ablation"), ("beta_sensitivity", "beta")):
        assert tables[name].missing
        assert tables[name].command == f"make study-{study}"
    summary["variants"]["leap"]["latency"] = None
    table = paper_tables(made_settings(), summary, {}, PAPER)["latency"]
    assert [label for label, _ in table.rows] == ["batch 1", "batch 8", "batch 32"]
    assert (table.missing, table.command) == (True, "dvc repro")


def test_a_collection_of_ours_never_fills_a_row_of_the_papers(summary: dict[str, Any]) -> None:
    for variant in ("leap", "baseline"):
        sets = summary["variants"][variant]["retrieval"]
        sets["arguana"] = {**sets["docstrings"], "ndcg_at_10_full": 0.5, "ndcg_at_10_exit": 0.4}
    table = paper_tables(made_settings(), summary, {}, PAPER)["beir"]
    assert cells(table, "ArguAna")["change by exit"].ours == pytest.approx(-0.2)
    assert len(table.rows) == 1  # no average over one of five


def test_the_average_is_over_all_five_collections(summary: dict[str, Any]) -> None:
    values = {"arguana": 0.1, "scidocs": 0.2, "nfcorpus": 0.3, "fiqa": 0.4, "scifact": 0.5}
    for variant in ("leap", "baseline"):
        summary["variants"][variant]["retrieval"] = {
            name: {"ndcg_at_10_full": value, "ndcg_at_10_exit": value / 2} for name, value in values.items()
        }
    table = paper_tables(made_settings(), summary, {}, PAPER)["beir"]
    assert cells(table, "average")["LEAP exited"].ours == pytest.approx(0.15)
    assert cells(table, "average")["change by exit"].ours == pytest.approx(-0.5)
    summary["variants"]["leap"]["retrieval"]["fiqa"] = None  # not measured yet
    table = paper_tables(made_settings(), summary, {}, PAPER)["beir"]
    assert cells(table, "average")["LEAP exited"].ours is None
    assert cells(table, "average")["baseline full"].ours == pytest.approx(0.3)


def test_latency_is_that_of_sentences_whatever_length_comes_last(summary: dict[str, Any]) -> None:
    leap = summary["variants"]["leap"]
    longer = [{**row, "length": 128, "ms_mean": 9.9, "monitoring_overhead": 0.177} for row in leap["latency"]]
    leap["latency"] += longer
    tables = paper_tables(made_settings(), summary, {}, PAPER)
    assert cells(tables["latency"], "batch 8")["exited, ms"].ours == pytest.approx(3.2 * 8)
    (overhead,) = (pairs for label, pairs in tables["figures"].rows if label.startswith("monitoring overhead"))
    assert overhead[0].ours == 0.025


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
    full = {"oracle": oracle, "layers": [{"layer": 7, "exit_rate_near_final": 0.8}]}
    studies = (
        # A reduced training's thresholds never stand for the pipeline's own student.
        study("thresholds", tau_098={"thresholds": [{**swept, "spearman": 0.1}]})
        | study("strategies", leap={"spearman_full": 0.8, "thresholds": [swept, leaves], "patiences": []})
        | study("ablation", full=full)
    )
    tables = paper_tables(made_settings(), summary, studies, PAPER)
    assert cells(tables["pareto"], "theta 0.93")["Spearman"].ours == 0.7
    assert [label for label, _ in tables["pareto"].rows] == ["theta 0.93"]
    assert cells(tables["decision_thresholds"], "theta 0.93")["NN@10 below 0.5"].ours == 0.1
    assert cells(tables["exit_strategies"], "theta 0.97")["quality"].ours == pytest.approx(0.875)
    assert cells(tables["ablation"], "full")["exit by layer 7"].ours == 0.8
    assert tables["beta_sensitivity"].missing


def test_figures_of_several_seeds_are_means(summary: dict[str, Any]) -> None:
    seeds = {str(seed): {"exit_rate": rate} for seed, rate in enumerate((0.1, 0.3))}
    studies = {"cross_distillation": {"variants": {"all_minilm_l6_v2": {"seeds": seeds}}}}
    table = paper_tables(made_settings(), summary, studies, PAPER)["cross_distillation"]
    assert cells(table, "MiniLM-L6-v2, layer-aligned (KL)")["exit rate"].ours == pytest.approx(0.2)


def test_a_path_leads_to_a_figure_to_null_or_nowhere() -> None:
    layers = [{"layer": layer, "x": layer / 10, "rule": "a"} for layer in (1, 2, 3)]
    results = {"layers": layers, "later": None, "one": {"x": 2.0}, "two": {"x": 4.0}, "none": {"x": None}}
    assert look_up(results, "layers[layer=2,rule=a].x") == 0.2
    assert look_up(results, "layers[layer>=2].x") == pytest.approx(0.25)
    assert look_up(results, "one|two.x") == 3.0
    assert look_up(results, "one.x / two.x") == 0.5
    assert look_up(results, "one.x / two.x - 1") == -0.5
    assert look_up(results, "later.rows[layer=1].x") is None
    assert look_up(results, "none.x") is look_up(results, "none.x / one.x") is None
    for nowhere in ("three.x", "layers[layer=4].x", "one|three.x", "one.y"):
        with pytest.raises(LookupError):
            look_up(results, nowhere)


def test_settings_read_as_they_are_written_and_have_no_difference(summary: dict[str, Any]) -> None:
    table = paper_tables(made_settings(), summary, {}, PAPER)["hyperparameters"]
    pair = cells(table, "train.learning_rate")["value"]
    assert (shown(pair.paper, pair.digits), shown(pair.ours, pair.digits)) == ("5e-05", "0.002")
    assert pair.difference is None


NAMES = (
    *("teacher", "student_layers", "student_width", "sentences", "epochs", "similarity_set"),
    *("hardware", "precision", "seeds"),
)


def setting(*values: Any) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


PAPERS = setting(
    "sentence-transformers/bert-large-nli-mean-tokens", 12, 384, 1_480_000, 10, "stsb", "NVIDIA L4", "fp16", 3
)


def test_the_papers_own_setting_has_no_reasons() -> None:
    assert reasons(PAPERS, PAPER.setting, QUALITY + LATENCY) == []


def test_each_fact_that_differs_is_a_reason() -> None:
    ours = setting("all-MiniLM-L6-v2", 12, 128, 7000, 3, "software", "AMD EPYC", None, 1)
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
