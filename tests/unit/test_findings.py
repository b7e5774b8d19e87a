"""The findings of a run in words: every figure is the evidence's, every refusal has its reasons."""

import copy
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made

from leap.report.findings import (
    against_smaller,
    cheapest_rule,
    figures,
    finding,
    next_steps,
    overview,
    reason,
    text,
    would_fail,
)


@pytest.fixture(scope="module")
def summary_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("project")
    settings = made_settings()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variant in ("leap", "baseline", "fixed_depth"):
            write_evidence(folder, settings, variant)
        summary = made(settings)
    summary["hardware"] |= {"cpu": "a processor", "cores": 2}
    return summary


@pytest.fixture
def summary(summary_once: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(summary_once)


def check(metric: str, value: float | None, bound: str, **changes: Any) -> dict[str, Any]:
    sign, limit = bound.split()
    return {
        "name": metric,
        "metric": metric,
        "value": value,
        "bound": f"{sign} {limit}",
        "threshold": float(limit),
        "interval": None,
        "severity": "refuse",
        "passed": False,
        "reason": "r",
        "n": 1,
        **changes,
    }


def refuse(variant: dict[str, Any], *checks: dict[str, Any]) -> None:
    variant["gate"] = {**variant["gate"], "passed": False, "checks": list(checks)}


def test_the_finding_is_the_gain_and_its_price_in_two_sentences(summary: dict[str, Any]) -> None:
    for result in summary["variants"]["leap"]["retrieval"].values():
        result["ndcg_at_10_query_exit"] = None
    assert finding(summary) == (
        "leap passes every check: a sentence takes 3.10 of 4 layers and is 1.25 [1.20, 1.30] times faster on this "
        "machine (a processor, 2 cores). STS 0.800 becomes 0.790, nDCG@10 loses 2.0 % where queries and documents "
        "leave early."
    )


def test_queries_that_exit_alone_leave_the_index_as_it_is(summary: dict[str, Any]) -> None:
    for result in summary["variants"]["leap"]["retrieval"].values():
        result["ndcg_at_10_query_exit"] = 0.505
    assert finding(summary).endswith(
        "With queries that leave early in an index built at full depth, which stays as it is, nDCG@10 gains 1.0 % "
        "(loses 2.0 % where documents leave early too)."
    )


def test_where_queries_have_a_layer_of_their_own_their_gain_and_the_index_are_the_finding(
    summary: dict[str, Any],
) -> None:
    leap = summary["variants"]["leap"]
    leap |= {"query_layer": 3, "query_speed_up": 1.33, "query_speed_up_ci95": [1.3, 1.4]}
    words = (
        "leap passes every check: queries leave at layer 3 of 4, 1.33 [1.30, 1.40] times faster on this machine "
        "(a processor, 2 cores), and nDCG@10 loses 1.0 %. Documents are at full depth: their index stays as it is."
    )
    assert finding(summary) == words
    leap["start"] = {"similarity": 0.96}
    assert finding(summary) == f"{words} In the index of the model before, queries keep 91.3 % of its nDCG@10."
    assert {row[0]: row[1] for row in overview(summary).rows}["leap"] == "3.10 of 4, queries 3"


def test_the_best_of_those_that_pass_is_the_finding(summary: dict[str, Any]) -> None:
    better = copy.deepcopy(summary["variants"]["leap"])
    better["gate"]["primary_metric"]["value"] = 0.9
    summary["variants"]["elastic"] = better
    assert finding(summary).startswith("elastic passes")


def test_a_control_is_never_the_finding_and_says_what_it_is_for(summary: dict[str, Any]) -> None:
    refuse(summary["variants"]["leap"], check("exit.nn_at_10", 0.7, ">= 0.8"))
    assert "baseline" not in finding(summary)
    rows = {row[0]: row[-1] for row in overview(summary).rows}
    assert rows["baseline"] == "control: gate.baseline, never promoted"
    assert rows["leap"] == "refused: NN@10 0.7 (at least 0.8)"
    refuse(summary["variants"]["baseline"], check("exit.similarity", 0.5, ">= 0.94"))
    rows = {row[0]: row[-1] for row in overview(summary).rows}
    assert rows["baseline"].endswith("it would be refused for similarity to full depth 0.5 (at least 0.94)")


def test_where_nothing_passes_the_nearest_is_named_with_its_reasons(summary: dict[str, Any]) -> None:
    refuse(summary["variants"]["leap"], check("sts.drop_vs_full", 0.0397, "<= 0.03"))
    assert finding(summary) == (
        "No variant passes the gate, so full depth is what to serve. The nearest, leap, is refused because of: "
        "STS lost 3.97 % (at most 3 %)."
    )


@pytest.mark.parametrize(
    ("metric", "value", "bound", "words"),
    [
        ("exit.rate", 0.02, "> 0.5", "sentences that leave early 2 % (more than 50 %)"),
        ("sts.qqp.drop_vs_full", 0.05, "<= 0.03", "STS lost 5 % (at most 3 %)"),
        ("retrieval.scifact.drop", 0.12, "<= 0.08", "nDCG@10 lost on scifact 12 % (at most 8 %)"),
        ("retrieval.a.query_drop", 0.05, "<= 0.03", "nDCG@10 lost on a where only queries exit 5 % (at most 3 %)"),
        ("retrieval.a.old_index_drop", 0.12, "<= 0.1", "nDCG@10 lost on a in the old index 12 % (at most 10 %)"),
        ("retrieval.a.drop_vs_start", 0.04, "<= 0.03", "nDCG@10 lost on a at full depth 4 % (at most 3 %)"),
        ("start.similarity", 0.93, ">= 0.95", "similarity of full depth to the model before 0.93 (at least 0.95)"),
        ("latency.query_speed_up", 0.97, "> 1.0", "queries' speed-up 0.97x (more than 1x)"),
        ("latency.speed_up", 0.74, "> 1.0", "speed-up 0.74x (more than 1x)"),
        ("latency.speed_up", None, "> 1.0", "speed-up not measured"),
        ("layers.6.stability", 0.5, ">= 0.9", "layers.6.stability 0.5 (at least 0.9)"),
    ],
)
def test_reasons_of_a_refusal(metric: str, value: float | None, bound: str, words: str) -> None:
    assert reason(check(metric, value, bound)) == words


def test_a_value_that_holds_but_whose_interval_does_not_says_so() -> None:
    judged = check("exit.nn_at_10", 0.805, ">= 0.8", interval=[0.79, 0.82])
    assert reason(judged) == "NN@10 0.805, 95 % interval 0.79 to 0.82 (at least 0.8)"


def test_a_speed_that_a_busy_machine_leaves_open_is_to_be_measured_again(summary: dict[str, Any]) -> None:
    open_yet = check("latency.query_speed_up", 0.738, "> 1.0", interval=[0.457, 1.4])
    assert reason(open_yet) == "queries' speed-up 0.738x, 95 % interval 0.457x to 1.4x (more than 1x)"
    refuse(summary["variants"]["leap"], open_yet)
    assert "leap: an idle machine: `dvc repro -sf benchmark_latency`, or a lower exit.query_layer" in "\n".join(
        next_steps(summary)
    )
    slower = check("latency.query_speed_up", 0.738, "> 1.0", interval=[0.7, 0.8])
    assert reason(slower) == "queries' speed-up 0.738x (more than 1x)"
    refuse(summary["variants"]["leap"], slower)
    assert not any("idle machine" in step for step in next_steps(summary))


def test_a_rule_that_would_pass_is_what_to_try_next(summary: dict[str, Any]) -> None:
    leap = summary["variants"]["leap"]
    tried = {"patience": 1, "rate": 1.0, "similarity": 0.95, "nn_at_10": 0.9, "quality": 0.98}
    leap["sweep"] = [
        {**tried, "threshold": 0.9, "min_layer": 1, "expected_layers": 1.0, "quality": 0.9},
        {**tried, "threshold": 0.9, "min_layer": 2, "expected_layers": 2.0},
        {**tried, "threshold": 0.95, "min_layer": 2, "expected_layers": 3.0},
    ]
    assert cheapest_rule(leap) == leap["sweep"][1]
    serve, cheaper = next_steps(summary)
    assert serve.startswith('leap: `LeapEncoder("models/leap-1")`')
    assert "2.00 layers" in cheaper
    assert "`dvc exp run -S exit.threshold=0.9 -S exit.min_layer=2 -S exit.patience=1`" in cheaper


def test_each_kind_of_refusal_has_its_help(summary: dict[str, Any]) -> None:
    leap = summary["variants"]["leap"]
    refuse(leap, check("exit.nn_at_10", 0.7, ">= 0.8"), check("latency.speed_up", 0.9, "> 1.0"))
    leap["sweep"] = []
    (step,) = next_steps(summary)
    assert step.startswith("leap: exits later (exit.min_layer, exit.threshold; nothing is trained again)")
    assert "dvc repro -sf benchmark_latency" in step


def test_another_rule_for_sentences_does_not_help_queries(summary: dict[str, Any]) -> None:
    leap = summary["variants"]["leap"]
    tried = {"patience": 1, "rate": 1.0, "similarity": 0.95, "nn_at_10": 0.9, "quality": 0.98}
    leap["sweep"] = [{**tried, "threshold": 0.9, "min_layer": 2, "expected_layers": 2.0}]
    refuse(leap, check("exit.rate", 0.1, "> 0.5"))
    (step,) = next_steps(summary)
    assert "dvc exp run" in step
    refuse(leap, check("exit.rate", 0.1, "> 0.5"), check("retrieval.a.query_drop", 0.05, "<= 0.03"))
    (step,) = next_steps(summary)
    assert "a later exit.query_layer" in step


def test_a_student_of_one_depth_is_told_nothing(summary: dict[str, Any]) -> None:
    leap = summary["variants"]["leap"]
    refuse(leap, check("exit.rate", 0.0, "> 0.5"))
    leap["sweep"], leap["exit"]["rate"], leap["exit_rule"]["min_layer"] = [], 0.0, leap["depth"]
    assert next_steps(summary) == []
    leap["query_layer"] = 2
    assert next_steps(summary) != []


def test_figures_of_a_strategy_are_held_against_the_gates_bounds(summary: dict[str, Any]) -> None:
    checks = summary["variants"]["leap"]["gate"]["checks"]
    row = {"rate": 0.9, "similarity": 0.93, "nn_at_10": 0.85, "quality": 0.95}
    assert would_fail(row, checks) == [
        "similarity to full depth 0.93 (at least 0.94)",
        "STS lost 5 % (at most 3 %)",
    ]
    assert would_fail({**row, "similarity": 0.94, "quality": 0.98}, checks) == []
    assert would_fail({**row, "similarity": 0.94, "quality": None}, checks) == ["STS lost not measured"]


@pytest.mark.parametrize(
    ("interval", "word"),
    [([0.01, 0.02], "better"), ([-0.1, -0.01], "worse"), ([-0.1, 0.1], "not shown to differ")],
)
def test_a_smaller_model_is_compared_pair_by_pair(
    summary: dict[str, Any], interval: list[float], word: str
) -> None:
    assert against_smaller(summary) is None
    rival = {"difference": 0.015, "ci95": interval}
    summary["variants"]["leap"]["rivals"] = {"fixed_depth": {"sts": {"software": {"exit": rival}}}}
    words = against_smaller(summary)
    assert words is not None
    assert words.endswith(f"+0.015 [{interval[0]:+.3f}, {interval[1]:+.3f}], {word}.")
    assert "90% of the sentences" not in words
    summary["variants"]["leap"]["exit"]["layers"] = {"3": 499, "4": 1}
    assert "100% of the sentences leave at layer 3: it costs what 3 layers cost" in str(against_smaller(summary))


def test_the_terminal_has_the_first_screen(summary: dict[str, Any]) -> None:
    words = text(summary)
    assert words.startswith("leap passes every check")
    assert max(map(len, words.splitlines())) <= 100
    assert "baseline, control: gate.baseline, never promoted" in words
    assert 'next: leap: `LeapEncoder("models/leap-1")`' in words


def test_headline_figures_have_the_names_of_dvcs_metrics(summary: dict[str, Any]) -> None:
    from leap.evidence.evidence_file import Evidence
    from leap.gate.metrics import main_figures

    nothing = Evidence("leap", 1, None, None, None, {}, {}, None)
    assert set(main_figures(nothing, made_settings(), True)) <= set(figures(summary["variants"]["leap"]))
