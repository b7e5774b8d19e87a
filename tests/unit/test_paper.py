"""reference/paper.yaml: every table of the paper is there, rows fit together, known figures are right."""

from pathlib import Path

import pytest

from leap.core.errors import UserError
from leap.core.settings import parse_settings, read_settings
from leap.report.paper import Paper, read_paper

PROJECT = Path(__file__).parents[2]

# Every \label{tab:...} of the paper's source, and the two drawings whose numbers are in it.
LABELS = {
    "tab:main-results",
    "tab:cross-distill",
    "tab:layer-comparison",
    "tab:layer-analysis",
    "fig:exit-distribution",
    "tab:pareto",
    "fig:pareto",
    "tab:beir",
    "tab:latency",
    "tab:decision-thresholds",
    "tab:contraction-appendix",
    "tab:exit-strategies",
    "tab:ablation-appendix",
    "tab:sensitivity-appendix",
    "tab:nn-sanity",
    "tab:hyperparams-appendix",
    "tab:beir-ndcg5",
    "tab:beir-ndcg1-3",
}


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read_paper(PROJECT / "reference/paper.yaml")


def test_every_table_of_the_paper_is_there_once(paper: Paper) -> None:
    labels = [table.label for table in paper.tables.values() if table.label]
    assert sorted(labels) == sorted(LABELS)


@pytest.mark.parametrize(
    ("table", "where", "column", "value"),
    [
        ("main_results", {"model": "leap"}, "spearman", 0.760),
        ("main_results", {"model": "baseline"}, "spearman", 0.777),
        ("layer_comparison", {"layer": 7}, "baseline_similarity", 0.215),
        ("layer_analysis", {"layer": 11}, "nn_at_10", 0.93),
        ("exit_distribution", {"layer": 7}, "share", 0.539),
        ("pareto", {"threshold": 0.93}, "expected_layers", 5.8),
        ("beir", {"set": "arguana"}, "change_by_exit", -0.247),
        ("beir_at_5", {"set": "scidocs"}, "change_at_5", -0.115),
        ("beir_at_1_and_3", {"set": "fiqa"}, "change_at_1", 0.158),
        ("latency", {"batch": 32}, "exit_ms", 10.61),
        ("decision_thresholds", {"threshold": 0.99}, "speed_up", 0.69),
        ("cross_distillation", {"model": "DistilBERT-6"}, "max_exit_rate", 0.715),
        ("exit_strategies", {"strategy": "converged", "threshold": 0.97}, "expected_layers", 6.9),
        ("ablation", {"variant": "with_contrast"}, "spearman", 0.70),
        ("beta_sensitivity", {"beta": 0.4}, "spearman", 0.487),
        ("nn_failure", {"layer": 4}, "below_50", 0.418),
    ],
)
def test_known_cells(paper: Paper, table: str, where: dict[str, str | float], column: str, value: float) -> None:
    (row,) = [row for row in paper.tables[table].rows if where.items() <= row.items()]
    assert row[column] == value


def test_figures_of_the_text(paper: Paper) -> None:
    assert paper.figures["monitoring_overhead"].value == 0.222
    assert paper.figures["median_contraction_leap"].value == 0.911
    assert paper.figures["contraction_leap_late"].bound == "below"
    assert paper.figures["fixed_depth_7_spearman"].value == 0.792


def test_numbers_that_follow_from_others_follow(paper: Paper) -> None:
    drawn = paper.tables["exit_distribution"].rows
    shares = {int(row["layer"]): float(row["share"]) for row in drawn}
    assert sum(shares.values()) == pytest.approx(1.0)
    # The paper's own caption says 91.9 % by layer 7; its bars add up to 90.9 %: listed as a disagreement.
    assert sum(share for layer, share in shares.items() if layer <= 7) == pytest.approx(0.909)
    for row in paper.tables["pareto"].rows:
        assert 12 / float(row["expected_layers"]) == pytest.approx(float(row["layer_reduction"]), rel=0.015)
    for row in paper.tables["latency"].rows:
        assert float(row["full_ms"]) / float(row["exit_ms"]) == pytest.approx(float(row["speed_up"]), abs=6e-3)
    rows = {str(row["name"]): row for row in paper.tables["beir"].rows}
    for column in ("baseline_full", "leap_full", "leap_exit"):
        mean = sum(float(row[column]) for name, row in rows.items() if name != "average") / 5
        assert float(rows["average"][column]) == pytest.approx(mean, abs=6e-4)


def test_several_values_for_one_thing_differ_and_name_their_places(paper: Paper) -> None:
    assert len(paper.disagreements) > 20
    for item in paper.disagreements:
        assert len({str(one.value) for one in item.values}) == len(item.values) >= 2, item.what
        assert all(one.place for one in item.values)


def test_the_paper_profile_has_the_papers_hyperparameters(paper: Paper) -> None:
    from ruamel.yaml import YAML

    from leap.core.settings.profiles import compose

    settings = parse_settings(YAML(typ="safe").load(compose("paper", PROJECT / "profiles")), "paper")
    content = settings.model_dump()
    for row in paper.tables["hyperparameters"].rows:
        block, key = str(row["setting"]).split(".")
        assert content[block][key] == row["value"], row


def test_mistakes_in_the_file_are_listed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text("title: x\ntables: {a: {label: null, place: p, rows: []}}\n")
    with pytest.raises(UserError, match=r"tables\.a\.title(.|\n)*figures"):
        read_paper(path)
    with pytest.raises(UserError, match="is missing"):
        read_paper(tmp_path / "no.yaml")


def test_the_embedded_settings_have_every_study(paper: Paper) -> None:
    studies = read_settings(PROJECT / "params.yaml").studies
    rungs = [row["variant"] for row in paper.tables["ablation"].rows]
    # Ours in addition: one term of the exit loss alone.
    assert [name for name in studies["ablation"].variants if name in rungs] == rungs
    betas = [variant.loss["beta"] for variant in studies["beta"].variants.values()]
    assert betas == [row["beta"] for row in paper.tables["beta_sensitivity"].rows]
