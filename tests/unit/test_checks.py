import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_evidence import diagnose, made_settings, write_evidence

from leap.core.environment import hardware, this_hardware
from leap.core.errors import UserError
from leap.core.settings.gate import Check
from leap.evidence.evidence_file import Evidence, read_evidence
from leap.gate.checks import CheckResult, judge, passes, run_checks
from leap.gate.metrics import Measured, Rivals, data_behind, expand, main_figures, measure, relative_drop, scope
from leap.gate.verdict import lines, verdict_of

SETTINGS = made_settings()


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(project: Path, variant: str = "leap", **changes: Any) -> Evidence:
    write_evidence(project, SETTINGS, variant, **changes)
    return read_evidence(variant, 1, SETTINGS)


def rivals(project: Path, baseline: float = 0.8, fixed_depth: float = 0.8) -> Rivals:
    return {
        "baseline": made(project, "baseline", sts={"spearman_full": baseline}),
        "fixed_depth": made(project, "fixed_depth", sts={"spearman_full": fixed_depth}),
    }


def value(metric: str, evidence: Evidence, others: Rivals | None = None) -> float | None:
    return measure(metric, evidence, "software", others or {}).value


def checked(evidence: Evidence, others: Rivals) -> list[CheckResult]:
    return run_checks(SETTINGS.gate, evidence, "software", others, this_hardware(on_card=False))


def check(**settings: Any) -> Check:
    return Check(metric="exit.rate", **settings)


def judged(found: float | None, interval: tuple[float, float] | None = None, **settings: Any) -> CheckResult:
    return judge("c", check(**settings), Measured("exit.rate", found, interval=interval), "here")


@pytest.mark.parametrize(
    ("bound", "below", "equal", "above"),
    [
        ("above", False, False, True),
        ("at_least", False, True, True),
        ("below", True, False, False),
        ("at_most", True, True, False),
    ],
)
def test_bounds_at_the_threshold(bound: str, below: bool, equal: bool, above: bool) -> None:
    step = math.ulp(0.94)
    assert judged(0.94 - step, **{bound: 0.94}).passed is below
    assert judged(0.94, **{bound: 0.94}).passed is equal
    assert judged(0.94 + step, **{bound: 0.94}).passed is above


def test_a_reason_tells_value_and_threshold_apart() -> None:
    assert judged(0.37, at_least=0.94).reason == "exit.rate 0.37 is below 0.94"
    assert judged(0.93999999, at_least=0.94).reason == "exit.rate 0.93999999 is below 0.94"
    assert judged(0.5, above=0.5).reason == "exit.rate 0.5 is not above 0.5"
    assert judged(0.96, at_least=0.94).reason == "exit.rate 0.96 >= 0.94"


def test_the_worse_end_of_the_interval_is_judged() -> None:
    interval = (0.93, 0.97)
    assert not judged(0.95, interval, at_least=0.94, by_interval=True).passed
    assert judged(0.95, interval, at_least=0.94).passed
    assert not judged(0.95, interval, at_most=0.96, by_interval=True).passed
    assert judged(0.95, interval, at_most=0.97, by_interval=True).passed
    reason = judged(0.95, interval, at_least=0.94, by_interval=True).reason
    assert reason == "exit.rate 0.95: low end of its 95 % interval 0.93 is below 0.94"


def test_without_the_interval_that_is_asked_for_it_fails() -> None:
    result = judged(0.95, None, at_least=0.94, by_interval=True)
    assert not result.passed
    assert result.value == 0.95
    assert result.reason == (
        "exit.rate 0.95: its 95 % interval, by which it is judged, is missing in the evidence"
    )


@pytest.mark.parametrize("key", ["above", "at_least", "below", "at_most"])
def test_missing_and_not_finite_fail_every_bound(key: str) -> None:
    missing = judged(None, **{key: 0.5})
    assert not missing.passed
    assert "missing or not a finite number" in missing.reason
    broken = judged(0.5, (math.nan, math.nan), by_interval=True, **{key: 0.5})
    assert not broken.passed
    json.dumps(broken.as_json(), allow_nan=False)


@given(st.floats(0, 1), st.floats(0, 1))
def test_interval_checks_are_never_milder_than_the_value(a: float, b: float) -> None:
    low, high = sorted((a, b))
    middle = (low + high) / 2
    for bound in ("above", "at_least", "below", "at_most"):
        if judged(middle, (low, high), by_interval=True, **{bound: 0.5}).passed:
            assert judged(middle, (low, high), **{bound: 0.5}).passed


def test_metric_paths(project: Path) -> None:
    evidence = made(project)
    assert value("exit.rate", evidence) == 0.9
    assert value("oracle.expected_layers", evidence) == 3.2
    assert value("truncation.nn_at_10", evidence) == 0.865
    assert value("sts.spearman_full", evidence) == 0.80
    assert value("retrieval.second.ndcg_at_10_exit", evidence) == 0.49
    assert value("latency.speed_up", evidence) == 1.25
    assert value("exit.typo", evidence) is None
    assert value("retrieval.absent.drop", evidence) is None
    assert value("exit.layers", evidence) is None  # counts are no number


def test_counts_and_intervals_come_with_the_metric(project: Path) -> None:
    evidence = made(project)

    def found(metric: str) -> tuple[int | None, tuple[float, float] | None]:
        measured = measure(metric, evidence, "software", {})
        return measured.n, measured.interval

    assert found("exit.similarity") == (500, (0.96, 0.97))
    assert found("sts.spearman_exit") == (250, (0.74, 0.83))
    assert found("sts.spearman_full") == (250, (0.75, 0.84))
    assert found("retrieval.second.drop") == (500, (0.01, 0.03))
    assert found("retrieval.second.query_drop") == (500, (0.005, 0.015))
    assert found("latency.speed_up") == (40, (1.2, 1.3))


@pytest.mark.parametrize("broken", [None, math.nan, math.inf, "0.9", True, [0.9]])
def test_what_is_no_finite_number_is_missing(project: Path, broken: Any) -> None:
    evidence = made(project)
    assert evidence.diagnose is not None
    evidence.diagnose["exit"]["rate"] = broken
    assert value("exit.rate", evidence) is None


def test_a_star_is_every_collection_each_judged(project: Path) -> None:
    evidence = made(project)
    evidence.retrieval["second"]["drop"] = 0.2
    assert expand("retrieval.*.drop", evidence) == ["retrieval.docstrings.drop", "retrieval.second.drop"]
    results = {r.name: r for r in checked(evidence, rivals(project))}
    assert results["retrieval.docstrings"].passed
    assert not results["retrieval.second"].passed
    assert not passes(list(results.values()))


def test_a_star_for_nothing_fails() -> None:
    empty = Evidence("leap", 1, "c", "m", {}, {}, {}, None)
    measured = measure(expand("retrieval.*.drop", empty)[0], empty, "software", {})
    assert not judge("retrieval", Check(metric="retrieval.*.drop", at_most=0.1), measured, "").passed


def test_drops_are_relative_and_against_the_rivals_full_depth(project: Path) -> None:
    evidence, others = made(project), rivals(project, baseline=0.82, fixed_depth=0.75)
    assert value("sts.drop_vs_full", evidence) == pytest.approx(1 - 0.79 / 0.80)
    assert value("sts.drop_vs_baseline", evidence, others) == pytest.approx(1 - 0.79 / 0.82)
    assert value("retrieval.second.drop_vs_baseline", evidence, others) == pytest.approx(1 - 0.49 / 0.50)
    assert value("retrieval.second.drop_vs_full", evidence, others) == pytest.approx(1 - 0.49 / 0.50)


def test_the_adaptive_gain_is_exits_over_the_fixed_depth_students_full_depth(project: Path) -> None:
    evidence, others = made(project), rivals(project, fixed_depth=0.75)
    actual = measure("sts.adaptive_gain_vs_fixed_depth", evidence, "software", others)
    assert actual.value == pytest.approx(0.79 - 0.75)
    assert actual.note == "3.10 layers on average against fixed_depth's 4"
    assert value("retrieval.second.adaptive_gain_vs_fixed_depth", evidence, others) == pytest.approx(-0.01)


def test_a_comparison_with_what_the_settings_leave_out_does_not_apply(project: Path) -> None:
    evidence, others = made(project), {**rivals(project), "baseline": None, "fixed_depth": None}
    results = {r.name: r for r in checked(evidence, others)}
    for name, key in (("quality_against_baseline", "baseline"), ("adaptive_gain", "fixed_depth")):
        assert results[name].passed
        assert results[name].reason.endswith(f"gate.{key} is null: there is nothing to compare with")


def test_a_rival_on_other_data_or_none_is_no_comparison(project: Path) -> None:
    evidence, others = made(project), rivals(project)
    others["fixed_depth"].sts["software"]["data"] = {"data/pairs.csv": "other"}
    results = {r.name: r for r in checked(evidence, others)}
    gain = results["adaptive_gain"]
    assert (gain.passed, gain.severity) == (False, "warn")
    assert gain.reason.endswith("missing: fixed_depth was measured on other data")
    alone = {r.name: r for r in checked(evidence, {})}
    assert alone["adaptive_gain"].reason.endswith("missing: there is no evidence of gate.fixed_depth")
    assert not passes(list(alone.values()))  # the baseline's refuses


def test_the_scope_is_in_the_metric(project: Path) -> None:
    evidence = made(project)
    assert value("layers.3.nn_at_10", evidence) == 0.85
    assert value("layers.9.nn_at_10", evidence) is None
    assert value("sts.software.spearman_exit", evidence) == 0.79
    assert value("sts.absent.spearman_exit", evidence) is None
    assert scope("exit.rate", "software") == "realised exit layers"
    assert scope("layers.3.nn_at_10", "software") == "layer 3"
    assert scope("sts.drop_vs_full", "software") == "data set software"
    assert scope("retrieval.arguana.drop", "software") == "data set arguana"
    assert expand("sts.*.drop_vs_full", evidence) == ["sts.software.drop_vs_full"]


def test_a_star_leaves_out_what_has_a_check_of_its_own(project: Path) -> None:
    known = {"metric": "retrieval.second.drop", "at_most": 0.3, "severity": "warn"}
    checks = {**{k: c.model_dump() for k, c in SETTINGS.gate.checks.items()}, "known_failure": known}
    settings = made_settings(gate={"checks": checks})
    evidence = made(project, retrieval={"drop": 0.25, "drop_ci95": [0.2, 0.3]})
    evidence.retrieval["docstrings"] |= {"drop": 0.05, "drop_ci95": [0.03, 0.07]}
    results = run_checks(settings.gate, evidence, "software", rivals(project), this_hardware(on_card=False))
    names = [result.name for result in results if result.metric.endswith(".drop")]
    assert names == ["retrieval.docstrings", "known_failure"]
    assert passes(results)


def test_a_check_of_an_unknown_data_set_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(UserError, match=r"gate.checks.x.metric: 'nowhere' of retrieval.nowhere.drop"):
        made_settings(gate={"checks": {"x": {"metric": "retrieval.nowhere.drop", "at_most": 0.1}}})


def test_latency_of_another_machine_is_no_proof(project: Path) -> None:
    evidence = made(project)
    assert evidence.latency is not None
    evidence.latency["environment"] = {"cpu": "Abacus", "cores": 1}
    (speed,) = [r for r in checked(evidence, rivals(project)) if r.name == "speed_up"]
    here = this_hardware(on_card=False)[0]
    assert not speed.passed
    assert speed.reason == (
        f"latency.speed_up 1.25: measured on Abacus, 1 cores, not on the target hardware, {here}"
    )
    (target,) = [
        r for r in run_checks(SETTINGS.gate, evidence, "software", {}, ["Abacus, 1 cores"]) if r.name == "speed_up"
    ]
    assert target.passed
    assert hardware({"card": "NVIDIA H100", "cpu": "x", "cores": 2}) == "NVIDIA H100"
    evidence.latency["environment"]["card"] = "NVIDIA H100"
    (none,) = [r for r in run_checks(SETTINGS.gate, evidence, "software", {}, []) if r.name == "speed_up"]
    assert "which has none" in none.reason


def test_a_figure_of_the_diagnosis_outside_of_blocks_can_be_judged(project: Path) -> None:
    evidence = made(project, diagnose={"monotony": 0.99, "monotony_ci95": [0.98, 0.995]})
    measured = measure("diagnose.monotony", evidence, "software", {})
    assert (measured.value, measured.interval, measured.n) == (0.99, (0.98, 0.995), 500)


QUERIES_ALONE = {"exit_rule": {"threshold": 0.95, "min_layer": 4, "patience": 1}, "query_layer": 2, "depth": 4}
STAYING = {"rate": 0.0, "expected_layers": 4.0, "similarity": 1.0, "similarity_ci95": [1.0, 1.0]}


def queries_alone(project: Path, **changes: Any) -> Evidence:
    """A variant whose encode computes all layers and whose queries leave at layer 2 of 4."""
    exits = {**STAYING, "nn_at_10": 1.0, "nn_at_10_ci95": [1.0, 1.0]}
    evidence = made(project, latency={"query_layer": 2, "speed_up": 0.95, "speed_up_ci95": [0.9, 1.0]}, **changes)
    assert evidence.diagnose is not None
    evidence.diagnose.update({**QUERIES_ALONE, "exit": exits})
    return evidence


def test_where_only_queries_leave_early_they_are_judged_by_what_they_lose_and_gain(project: Path) -> None:
    results = {r.name: r for r in checked(queries_alone(project), rivals(project))}
    why = "encode computes all layers by its rule, and queries leave at layer 2: their checks judge it"
    for name in ("exit_rate", "speed_up"):
        assert (results[name].passed, results[name].reason) == (
            True,
            f"{results[name].metric} is not applicable: {why}",
        )
    assert (results["query_speed_up"].value, results["query_speed_up"].interval) == (2.0, (1.9, 2.1))
    assert (results["query_exit.second"].value, results["query_exit.second"].severity) == (0.01, "refuse")
    assert passes([*results.values()])


def test_queries_that_lose_too_much_or_gain_no_time_are_refused(project: Path) -> None:
    lost = queries_alone(project, retrieval={"query_drop": 0.031})
    refused = {r.name for r in checked(lost, rivals(project)) if not r.passed and r.severity == "refuse"}
    assert refused == {"query_exit.docstrings", "query_exit.second"}
    slow = queries_alone(project)
    assert slow.latency is not None
    slow.latency["by_layer"][1] |= {"speed_up": 1.01, "speed_up_ci95": [0.98, 1.03]}
    assert not passes(checked(slow, rivals(project)))
    assert "query_speed_up" in [r.name for r in checked(slow, rivals(project)) if not r.passed]
    del slow.latency["by_layer"][1]
    assert "query_speed_up" in [r.name for r in checked(slow, rivals(project)) if not r.passed]


@pytest.mark.parametrize(
    "change",
    [{"exit_rule": {"threshold": 0.95, "min_layer": 3, "patience": 1}}, {"query_layer": 4}, {"query_layer": None}],
)
def test_a_rule_that_lets_texts_leave_or_no_query_earlier_is_judged_by_its_rate(
    project: Path, change: Any
) -> None:
    evidence = queries_alone(project)
    assert evidence.diagnose is not None
    evidence.diagnose.update(change)
    results = {r.name: r for r in checked(evidence, rivals(project))}
    assert results["exit_rate"].reason == "exit.rate 0 is not above 0.5"
    assert not results["speed_up"].passed


def test_full_depth_is_held_against_the_model_before_where_there_is_one(project: Path) -> None:
    near = made(project, diagnose={"start": {"similarity": 0.96, "similarity_ci95": [0.955, 0.965]}})
    old = {r.name: r for r in checked(near, rivals(project))}
    assert (old["similarity_to_start"].passed, old["similarity_to_start"].value) == (True, 0.96)
    assert old["old_index.second"].value == pytest.approx(1 - 0.475 / 0.52)
    assert old["old_index.second"].passed
    lost = old["full_against_start.second"]
    assert (lost.value, lost.passed, lost.severity) == (pytest.approx(1 - 0.50 / 0.52), False, "refuse")
    assert value("sts.drop_vs_start", near) == pytest.approx(1 - 0.80 / 0.82)
    far = made(project, diagnose={"start": {"similarity": 0.951, "similarity_ci95": [0.94, 0.96]}})
    assert "similarity_to_start" in {r.name for r in checked(far, rivals(project)) if not r.passed}


def test_without_a_model_before_its_checks_do_not_apply_and_without_evidence_they_fail(
    project: Path,
) -> None:
    results = {r.name: r for r in checked(made(project), rivals(project))}
    reason = "is not applicable: student.start is not {kind: teacher}: there is no model before"
    assert results["similarity_to_start"].reason == f"start.similarity {reason}"
    assert results["old_index.second"].reason == f"retrieval.second.old_index_drop {reason}"
    assert results["full_against_start.second"].reason == f"retrieval.second.drop_vs_start {reason}"
    evidence = made(project)
    assert evidence.diagnose is not None
    del evidence.diagnose["start"]
    missing = {r.name: r for r in checked(evidence, rivals(project))}
    assert not missing["similarity_to_start"].passed


def test_the_row_of_a_checkpoint_has_twelve_figures_at_most(project: Path) -> None:
    row = main_figures(made(project), SETTINGS, passed=True)
    assert len(row) <= 12
    assert (row["ndcg_full"], row["ndcg_query"], row["ndcg_exit"]) == (0.50, 0.495, 0.49)


@pytest.mark.parametrize("reference", [0.0, -0.1, None])
def test_a_drop_against_nothing_is_missing(reference: float | None) -> None:
    assert relative_drop(0.5, reference) is None


def test_a_variant_compared_with_itself_is_not_applicable(project: Path) -> None:
    baseline = made(project, "baseline")
    itself = measure("sts.drop_vs_baseline", baseline, "software", {"baseline": baseline})
    result = judge("q", Check(metric="sts.drop_vs_baseline", at_most=0.0), itself, "")
    assert (result.passed, result.value) == (True, None)
    assert result.reason == "sts.drop_vs_baseline is not applicable: baseline is gate.baseline itself"


def test_a_comparison_whose_rival_was_not_measured_fails(project: Path) -> None:
    missing = measure("sts.drop_vs_baseline", made(project), "software", {})
    result = judge("q", Check(metric="sts.drop_vs_baseline", at_most=0.5), missing, "")
    assert not result.passed
    assert "missing" in result.reason


def test_false_convergence_is_named_only_where_similarity_fails(project: Path) -> None:
    far = made(
        project,
        diagnose={
            "verdict": "exits and is far (false convergence)",
            "exit": {"rate": 0.97, "similarity": 0.37, "similarity_ci95": [0.36, 0.38], "nn_at_10": 0.9},
        },
    )
    reasons = {r.name: r.reason for r in checked(far, rivals(project))}
    assert reasons["similarity"].endswith(
        "is below 0.94: false convergence: consecutive layers agree, yet are far from the final one"
    )
    assert "false convergence" not in reasons["nn_at_10"]
    assert "false convergence" not in reasons["exit_rate"]


def test_a_warning_does_not_refuse(project: Path) -> None:
    evidence, others = made(project), rivals(project)
    results = checked(evidence, others)
    failed = [result.name for result in results if not result.passed]
    assert failed == ["adaptive_gain"]
    assert passes(results)
    verdict = verdict_of(SETTINGS, evidence, others)
    shown = lines(verdict)
    assert shown[-1] == "leap-1 passes, with a warning from adaptive_gain"
    assert shown[0].startswith("\N{CHECK MARK} exit_rate")
    assert any(line.startswith("! adaptive_gain") for line in shown)


@pytest.mark.parametrize("interval", [[0.97, 0.98], [0.9, 0.95]])
def test_a_mean_outside_its_own_interval_is_refused(project: Path, interval: list[float]) -> None:
    evidence = made(project, diagnose={"exit": {**diagnose()["exit"], "similarity_ci95": interval}})
    results = run_checks(SETTINGS.gate, evidence, "software", rivals(project), this_hardware(on_card=False))
    (result,) = (result for result in results if result.name == "similarity")
    assert not result.passed
    low, high = interval
    assert result.reason == f"exit.similarity 0.965: it lies outside its own 95 % interval, {low} to {high}"


def test_the_verdict_is_the_contracts_and_repeats_itself(project: Path) -> None:
    evidence, others = made(project, latency={"speed_up": 1.1, "speed_up_ci95": [0.9, 1.3]}), rivals(project)
    verdict = verdict_of(SETTINGS, evidence, others)
    assert list(verdict) == [
        "variant", "seed", "checkpoint", "model", "role", "passed", "primary_metric", "checks", "hardware",
        "bound_to",
    ]  # fmt: skip
    assert verdict["passed"] is False
    assert verdict["primary_metric"] == {"metric": "sts.spearman_exit", "value": 0.79}
    (speed,) = (check for check in verdict["checks"] if check["name"] == "speed_up")
    assert speed == {
        "name": "speed_up",
        "metric": "latency.speed_up",
        "scope": "target hardware",
        "bound": "> 1",
        "threshold": 1.0,
        "value": 1.1,
        "n": 40,
        "interval": [0.9, 1.3],
        "severity": "refuse",
        "passed": False,
        "reason": "latency.speed_up 1.1: low end of its 95 % interval 0.9 is not above 1",
    }
    assert lines(verdict)[-1] == "leap-1 is refused by speed_up"
    assert json.dumps(verdict, allow_nan=False) == json.dumps(verdict_of(SETTINGS, evidence, others))


def test_the_data_behind_a_metric(project: Path) -> None:
    evidence = made(project)
    evidence.retrieval["second"]["data"] = {"other": "hash"}
    assert data_behind("retrieval.second.drop", evidence, "software") == {"other": "hash"}
    assert list(data_behind("sts.spearman_exit", evidence, "software")) == ["data/pairs.csv"]
    assert list(data_behind("exit.rate", evidence, "software")) == ["data/pairs.csv"]
