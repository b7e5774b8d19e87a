"""`leap monitor`: the paper's rules at and around their limits, the files and the exit code."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings
from made_store import enter_project
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.serve.compare_windows import compare, differences, distribution_distance
from leap.serve.monitor_command import compare_windows
from leap.serve.prometheus import prometheus_text
from leap.serve.shadow import Agreement
from leap.serve.window import Mean, Window, add_windows

SETTINGS = made_settings()
START = datetime(2026, 11, 20, tzinfo=UTC)
NONE = Mean(0, None)
RULE = "converged: threshold 0.95, patience 1, min_layer 2"


def window(exits: list[int], nn: float | None = 0.9, failed: float | None = 0.0, **changes: Any) -> Window:
    made = Window(
        started=START,
        ended=START + timedelta(days=1),
        model={"checkpoint": "c" * 64, "depth": len(exits), "exit_rule": {"threshold": 0.95}},
        exits=tuple(exits),
        bypassed=3,
        not_finite=0,
        similarity=(NONE, Mean(1000, 0.9), Mean(900, 0.97), NONE),
        shadowed=Mean(500, 0.96),
        to_final=(Mean(500, 0.4), Mean(500, 0.7), Mean(500, 0.96), Mean(500, 1.0)),
        rules={RULE: sum(exits)},
        scores=(sum(exits) / 10,) * 10,
        calibrated_scores=(sum(exits) / 10,) * 10,
        agreement=Agreement(0 if nn is None else 384, nn, failed if nn is not None else None),
        expected_layers=3.2,
    )
    return replace(made, **changes)


def outcomes(reference: Window, current: Window) -> dict[str, str]:
    return {each.rule: each.outcome for each in compare(reference, current, SETTINGS.monitoring).findings}


STEADY = window([0, 500, 500, 0])  # mean 2.5


@pytest.mark.parametrize(
    ("exits", "outcome"),
    [
        ([0, 500, 500, 0], "fine"),
        ([0, 0, 500, 500], "fine"),  # 3.5: by exactly one layer
        ([0, 0, 499, 501], "alert"),
        ([500, 500, 0, 0], "fine"),
        ([501, 499, 0, 0], "alert"),
    ],
)
def test_the_mean_exit_layer_may_move_by_one_either_way(exits: list[int], outcome: str) -> None:
    assert outcomes(STEADY, window(exits))["exit_layer_shift"] == outcome


@pytest.mark.parametrize(("nn", "outcome"), [(0.9, "fine"), (0.721, "fine"), (0.72, "fine"), (0.719, "alert")])
def test_nn_at_10_may_fall_by_a_fifth_of_the_references(nn: float, outcome: str) -> None:
    actual = compare(STEADY, window([0, 500, 500, 0], nn=nn), SETTINGS.monitoring).findings[1]
    assert actual.outcome == outcome
    assert actual.value == pytest.approx(1 - nn / 0.9)


def test_better_neighbours_are_no_alert() -> None:
    assert outcomes(window([0, 500, 500, 0], nn=0.5), window([0, 500, 500, 0], nn=1.0))["nn_at_10_drop"] == "fine"


@pytest.mark.parametrize(("failed", "outcome"), [(0.2, "fine"), (0.21, "alert")])
def test_a_fifth_of_the_sentences_may_fail(failed: float, outcome: str) -> None:
    current = window([0, 500, 500, 0], failed=failed)
    assert outcomes(STEADY, current)["nn_fail_50"] == outcome
    assert ("raise the threshold" in compare(STEADY, current, SETTINGS.monitoring).findings[2].reason) == (
        outcome == "alert"
    )


@pytest.mark.parametrize(("last", "outcome"), [(900, "fine"), (901, "alert")])
def test_a_tenth_has_to_exit(last: int, outcome: str) -> None:
    assert outcomes(STEADY, window([0, 1000 - last, 0, last]))["exit_rate"] == outcome


def test_too_little_is_not_judged() -> None:
    few = window([0, 499, 500, 0], nn=None)
    assert set(outcomes(STEADY, few).values()) == {"not judged"}
    assert outcomes(few, STEADY) == {
        "exit_layer_shift": "not judged",
        "nn_at_10_drop": "not judged",
        "nn_fail_50": "fine",
        "exit_rate": "fine",
        "score_shift": "fine",
    }


def test_the_distance_sees_what_the_mean_hides() -> None:
    apart = window([500, 0, 0, 500])
    assert apart.mean_layer == STEADY.mean_layer == 2.5
    # Half of the sentences moved from 2 to 1, half from 3 to 4.
    assert distribution_distance(STEADY, apart) == pytest.approx(1.0)
    assert distribution_distance(STEADY, STEADY) == 0


def test_what_else_changed_is_said() -> None:
    later = {"started": START + timedelta(days=7), "ended": START + timedelta(days=8)}
    assert differences(STEADY, window([0, 500, 500, 0], **later)) == []
    other = {"checkpoint": "d" * 64, "depth": 4, "exit_rule": {"threshold": 0.9}}
    notes = " ".join(differences(STEADY, replace(STEADY, model=other, not_finite=2)))
    for text in ("two models: cccccccccccc and dddddddddddd", "exit rule was", "overlap", "2 similarities"):
        assert text in notes


def test_windows_add_up_by_their_weights() -> None:
    one = window([0, 100, 0, 0], nn=1.0, failed=0.0, agreement=Agreement(128, 1.0, 0.0))
    two = window([0, 0, 0, 300], agreement=Agreement(384, 0.6, 0.4), shadowed=Mean(1500, 0.92))
    three = window([0, 0, 0, 100], nn=None, shadowed=NONE, started=START - timedelta(days=2))
    total = add_windows([one, two, three])
    assert total.exits == (0, 100, 0, 400)
    assert total.mean_layer == pytest.approx(3.6)
    assert total.agreement == Agreement(512, pytest.approx(0.7), pytest.approx(0.3))
    assert total.shadowed == Mean(2000, pytest.approx((500 * 0.96 + 1500 * 0.92) / 2000))
    assert total.bypassed == 9
    assert (total.started, total.ended) == (START - timedelta(days=2), START + timedelta(days=1))


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_text_follows_the_format() -> None:
    text = prometheus_text(compare(STEADY, window([0, 0, 100, 900], nn=0.9), SETTINGS.monitoring))
    samples = samples_of(text)
    model = ("checkpoint", "c" * 12)
    assert samples["leap_window_exits", frozenset({model, ("layer", "4")})] == 900
    assert samples["leap_window_mean_exit_layer", frozenset({model})] == pytest.approx(3.9)
    assert samples["leap_monitor_alert", frozenset({model, ("rule", "exit_layer_shift")})] == 1
    assert samples["leap_monitor_alert", frozenset({model, ("rule", "nn_at_10_drop")})] == 0
    assert samples["leap_window_layer_reduction", frozenset({model, ("kind", "predicted")})] == 1.25
    # Layer 1 has no consecutive similarity: no sample rather than a wrong one.
    assert ("leap_window_consecutive_similarity", frozenset({model, ("layer", "1")})) not in samples


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = enter_project(tmp_path / "project", monkeypatch)
    with Path("params.yaml").open("w") as file:
        YAML().dump(SETTINGS.model_dump(mode="json"), file)
    later = {"started": START + timedelta(days=7), "ended": START + timedelta(days=8)}
    windows = {
        "before": STEADY,
        "calm": window([0, 400, 600, 0], **later),
        "drifted": window([0, 0, 0, 1000], nn=0.5, failed=0.45, **later),
        "few": window([0, 1, 0, 0], nn=None, **later),
    }
    for name, made in windows.items():
        Path(f"{name}.json").write_text(json.dumps(made.as_json()))
    return folder


def monitor(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["monitor", *arguments])


def test_a_calm_window_ends_with_0_and_its_files(project: Path) -> None:
    result = monitor("--reference", "before.json", "--current", "calm.json", "--prometheus", "leap.prom")
    assert result.exit_code == 0, result.output
    written = json.loads(Path("reports/monitor/comparison.json").read_text())
    assert written["alerts"] == []
    assert written["current"]["exit"]["mean_layer"] == 2.6
    assert [finding["outcome"] for finding in written["findings"]] == ["fine"] * 5
    assert samples_of(Path("leap.prom").read_text())


def test_an_alert_ends_with_3_and_its_file(project: Path) -> None:
    arguments = ("--reference", "before.json", "--current", "drifted.json")
    assert monitor(*arguments).exit_code == 3
    assert monitor(*arguments).exit_code == 3
    written = json.loads(Path("reports/monitor/comparison.json").read_text())
    assert written["alerts"] == ["exit_layer_shift", "nn_at_10_drop", "nn_fail_50", "exit_rate"]


def test_nothing_to_judge_is_not_a_silent_pass(project: Path) -> None:
    with pytest.raises(UserError, match="no rule could be judged"):
        compare_windows("before.json", "few.json", Path("out"), None, Path("params.yaml"))


def test_models_of_different_depths_are_not_compared(project: Path) -> None:
    shallow = window([0, 500, 500], similarity=(NONE,) * 3, to_final=(NONE,) * 3)
    Path("shallow.json").write_text(json.dumps(shallow.as_json()))
    with pytest.raises(UserError, match="4 and 3 layers"):
        compare_windows("before.json", "shallow.json", Path("out"), None, Path("params.yaml"))


def test_windows_are_named_by_a_pattern(project: Path) -> None:
    compare_windows("[b]*.json", "cal?.json", Path("out"), None, Path("params.yaml"))
    assert json.loads(Path("out/comparison.json").read_text())["reference"]["sentences"] == 1000
