import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_folder
from made_evidence import made_settings, write_evidence
from made_store import enter_project

import gate
import report
from leap.errors import UserError
from leap.evaluation.evidence import checkpoint_hash
from leap.gate.package_model import REQUIRED
from leap.gate.registry import (
    Standing,
    _Registry,
    compare,
    current_aliases,
    less_is_better,
    promote,
    rollback,
    standing,
)
from leap.gate.runtime_code import imports, runtime_modules
from leap.reporting.summary import row
from leap.tracking import Tracking

SETTINGS = made_settings()
DATA = {"pairs": "hash"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_project(tmp_path / "project", monkeypatch)


def checkpoint(variant: str, seed: int = 1) -> str:
    folder = Path("models") / f"{variant}-{seed}"
    if not folder.exists():
        write_folder(folder, layers=3, seed=sum(map(ord, variant)) + seed)
    return checkpoint_hash(folder)


def verdict(variant: str, value: float | None, passed: bool = True, metric: str = "sts.x") -> dict[str, Any]:
    return {
        "variant": variant,
        "seed": 1,
        "checkpoint": checkpoint(variant),
        "passed": passed,
        "primary_metric": {"metric": metric, "value": value},
        "checks": [{"name": "similarity", "passed": True, "severity": "refuse", "reason": "fine"}],
    }


def place(variant: str, value: float | None, data: dict[str, str] = DATA, **options: Any) -> Standing:
    return promote(Tracking.open(SETTINGS, required=True), verdict(variant, value, **options), data)


def held() -> dict[str, int]:
    """Alias to version."""
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    return {k: int(v) for k, v in tracking.client.get_registered_model("leap").aliases.items()}


def test_the_better_one_becomes_champion_and_the_old_one_previous(project: Path) -> None:
    assert place("leap", 0.78) == Standing(1, ["champion"], "became champion: there was none")
    second = place("leap_plus", 0.80)
    assert second.decision == "became champion: sts.x 0.8 is better than version 1's 0.78"
    assert held() == {"champion": 2, "previous": 1}


@pytest.mark.parametrize(("value", "word"), [(0.77, "worse than"), (0.78, "equal to")])
def test_a_worse_or_equal_one_stays_candidate(project: Path, value: float, word: str) -> None:
    place("leap", 0.78)
    placed = place("leap_plus", value)
    assert placed.aliases == ["candidate"]
    assert placed.decision == f"stays out: sts.x {value} is {word} version 1's 0.78"
    assert held() == {"champion": 1, "candidate": 2}


def test_again_changes_nothing(project: Path) -> None:
    first, second, third = place("leap", 0.78), place("leap_plus", 0.80), place("baseline", 0.70)
    before = held()
    assert place("leap", 0.78) == Standing(1, ["previous"], first.decision)
    assert place("leap_plus", 0.80) == second
    assert place("baseline", 0.70) == third
    assert held() == before == {"champion": 2, "previous": 1, "candidate": 3}


def test_a_candidate_that_gets_better_evidence_takes_over(project: Path) -> None:
    place("leap", 0.78)
    place("leap_plus", 0.70)
    place("leap_plus", 0.79)
    assert held() == {"champion": 2, "previous": 1}


def test_an_older_candidate_does_not_take_the_alias_back(project: Path) -> None:
    place("leap", 0.78)
    place("leap_plus", 0.70)
    place("baseline", 0.60)
    assert place("leap_plus", 0.70).aliases == []
    assert held() == {"champion": 1, "candidate": 3}


def test_a_champion_measured_on_other_data_gives_way(project: Path) -> None:
    place("leap", 0.90)
    placed = place("leap_plus", 0.50, data={"pairs": "other"})
    assert placed.decision == "became champion: version 1 was measured on other data and cannot be compared"
    assert held() == {"champion": 2, "previous": 1}


def test_a_refused_model_is_never_registered(project: Path) -> None:
    with pytest.raises(UserError, match="leap-1 is refused by the gate"):
        place("leap", 0.99, passed=False)
    tracking = Tracking.open(SETTINGS)
    assert standing(tracking, checkpoint("leap")) is None
    assert current_aliases(tracking) == {}
    assert tracking.client is not None
    assert list(tracking.client.search_registered_models()) == []


def test_the_champions_alias_moves_last(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place("leap", 0.78)
    original = _Registry.alias

    def broken(self: _Registry, alias: str, number: str) -> None:
        if alias == "champion":
            raise OSError("the server went away")
        original(self, alias, number)

    with monkeypatch.context() as patch:
        patch.setattr(_Registry, "alias", broken)
        with pytest.raises(UserError, match="the server went away"):
            place("leap_plus", 0.80)
    assert held() == {"champion": 1, "previous": 1, "candidate": 2}
    assert place("leap_plus", 0.80).aliases == ["champion"]
    assert held() == {"champion": 2, "previous": 1}


def test_an_upload_that_breaks_registers_nothing_and_the_next_try_does(project: Path, monkeypatch) -> None:
    from mlflow import MlflowClient

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifacts", broken)
        with pytest.raises(UserError, match="disk full"):
            place("leap", 0.78)
    assert standing(Tracking.open(SETTINGS), checkpoint("leap")) is None
    assert place("leap", 0.78) == Standing(1, ["champion"], "became champion: there was none")


def test_rollback_and_the_gate_respects_it(project: Path) -> None:
    place("leap", 0.78)
    place("leap_plus", 0.80)
    tracking = Tracking.open(SETTINGS)
    assert rollback(tracking).decision == "made champion again by a rollback in place of version 2"
    assert held() == {"champion": 1, "previous": 2}
    place("leap_plus", 0.80)
    assert held() == {"champion": 1, "previous": 2}
    assert current_aliases(tracking) == {
        checkpoint("leap"): ["champion"],
        checkpoint("leap_plus"): ["previous"],
    }


def test_rollback_without_a_previous_champion(project: Path) -> None:
    place("leap", 0.78)
    with pytest.raises(UserError, match="no version with alias previous"):
        rollback(Tracking.open(SETTINGS))


def test_the_version_tells_its_verdict(project: Path) -> None:
    place("leap", 0.78)
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    version = tracking.client.get_model_version("leap", "1")
    assert version.description == "leap-1: 1 of 1 checks pass\n\n- similarity: fine"
    assert version.tags["leap.checkpoint"] == checkpoint("leap")
    assert json.loads(version.tags["leap.primary_value"]) == 0.78


def test_the_champion_loads_without_pickle_and_gives_the_encoders_vectors(project: Path) -> None:
    place("leap", 0.78)
    import mlflow
    import pandas as pd

    from leap.exits import LeapEncoder

    texts = ["be do", "do bo di"]
    model = mlflow.pyfunc.load_model("models:/leap@champion")
    vectors = model.predict(pd.DataFrame({"sentence": texts}))
    expected = LeapEncoder(Path("models/leap-1")).encode(texts)
    np.testing.assert_array_equal(vectors, expected)
    full = model.predict(pd.DataFrame({"sentence": texts}), params={"strategy": "full"})
    encoder = LeapEncoder(Path("models/leap-1"))
    np.testing.assert_array_equal(full, encoder.encode(texts, strategy="full"))
    with pytest.raises(mlflow.exceptions.MlflowException, match="sentence"):
        model.predict(pd.DataFrame({"text": texts}))
    files = {path.name for path in Path("mlruns/artifacts/models").rglob("*") if path.is_file()}
    assert "model.safetensors" in files
    assert not any(name.endswith((".pkl", ".pickle", ".bin", ".pt")) for name in files)


def test_the_registered_model_needs_no_project_beside_it(project: Path) -> None:
    place("leap", 0.78)
    (folder,) = Path("mlruns/artifacts/models").glob("*/artifacts")
    code = (
        "import sys, pandas, mlflow\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "import leap\n"
        "print(model.predict(pandas.DataFrame({'sentence': ['be do']})).shape, leap.__file__)\n"
    )
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", code, str(folder.absolute())]
    done = subprocess.run(command, env=alone, cwd="/", capture_output=True, text=True)
    shape, _, module = done.stdout.strip().rpartition(" ")
    assert shape == "(1, 16)", done.stderr
    assert Path(module) == folder.absolute() / "code" / "leap" / "__init__.py"


def test_the_runtime_is_a_small_part_of_the_package_and_its_imports_are_required() -> None:
    modules = runtime_modules()
    assert {"leap", "leap.exits.encoder", "leap.model.encoder"} <= modules
    assert not any(name.startswith(("leap.gate", "leap.tracking", "leap.data")) for name in modules)
    roots = {name.partition(".")[0] for module in modules for name in imports(module)}
    # torch for CUDA requires the CUDA bindings itself; elsewhere they are not imported.
    third_party = roots - set(sys.stdlib_module_names) - {"leap", "cuda"}
    distributions = packages_distributions()
    assert {name for name in third_party if not set(distributions[name]) & set(REQUIRED)} == set()
    assert {"torch", "numpy", "safetensors"} <= third_party


def test_less_is_better_only_for_what_counts_harm() -> None:
    assert less_is_better("sts.drop_vs_full")
    assert less_is_better("exit.expected_layers")
    assert less_is_better("exit.nn_fail_50")
    assert not less_is_better("sts.spearman_exit")
    assert not less_is_better("exit.nn_at_10")


def tags(value: str, metric: str = "sts.x", data: str = "d") -> dict[str, str]:
    return {"leap.primary_metric": metric, "leap.primary_value": value, "leap.primary_data": data}


def test_comparison() -> None:
    assert compare(tags("0.2", "sts.drop"), tags("0.3", "sts.drop"), 1)[0]
    assert not compare(tags("0.3", "sts.drop"), tags("0.2", "sts.drop"), 1)[0]
    assert not compare(tags("null"), tags("0.2"), 1)[0]
    assert compare(tags("0.2"), tags("null"), 1)[0]
    assert compare(tags("0.1"), tags("0.2", metric="sts.y"), 4) == (
        True,
        "version 4 was measured by another metric and cannot be compared",
    )
    assert compare(tags("0.1"), {}, 4)[0]


def run_gate(variant: str) -> dict[str, Any]:
    return gate.main(SETTINGS, argparse.Namespace(variant=variant, seed=1))


@pytest.fixture
def measured(project: Path) -> Path:
    """Checkpoints of four variants with evidence; leap_plus is the best, baseline never leaves early."""
    changes: dict[str, Any] = {
        "baseline": {"diagnose": {"exit": {"rate": 0.0}}},
        "leap_plus": {"sts": {"spearman_exit": 0.795}},
    }
    for variant in SETTINGS.variants:
        checkpoint(variant)
        write_evidence(project, SETTINGS, variant, **changes.get(variant, {}))
    return project


def test_the_gate_writes_the_same_verdict_again(measured: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "leap")
    last = run_gate("leap")
    assert last["passed"] is True
    assert last["registry"] == {
        "version": 1,
        "aliases": ["champion"],
        "decision": "became champion: there was none",
    }
    first = Path("verdicts/leap-1.json").read_bytes()
    assert "\N{CHECK MARK} similarity" in caplog.text
    run_gate("leap")
    assert Path("verdicts/leap-1.json").read_bytes() == first
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = tracking.find({"leap.verdict": "passed"})
    assert tracking.client.get_model_version("leap", "1").run_id == run.info.run_id
    assert {item.path for item in tracking.client.list_artifacts(run.info.run_id, "verdict")} == {
        "verdict/leap-1.json"
    }


def test_a_refusal_is_a_result(measured: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "leap")
    last = run_gate("baseline")
    assert last["passed"] is False
    assert last["registry"] is None
    assert last["failed"][0] == "exit_rate"
    assert "\N{BALLOT X} exit_rate" in caplog.text
    assert current_aliases(Tracking.open(SETTINGS)) == {}
    assert json.loads(Path("verdicts/baseline-1.json").read_text())["passed"] is False


def test_a_champion_that_is_refused_later_is_pointed_out(
    measured: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_gate("leap")
    write_evidence(measured, SETTINGS, "leap", latency={"speed_up": 0.9})
    last = run_gate("leap")
    assert last["passed"] is False
    assert last["registry"]["aliases"] == ["champion"]
    assert "version 1 is refused now but has the alias champion" in caplog.text


def test_the_report_shows_who_is_champion_now(measured: Path) -> None:
    Path("reports/data_docs").mkdir(parents=True)
    run_gate("leap")
    run_gate("leap_plus")
    last = report.main(SETTINGS, argparse.Namespace())
    assert last["passed"] == ["leap", "leap_plus"]
    summary = json.loads(Path("reports/summary.json").read_text())
    aliases = {name: row(name, variant)[-1] for name, variant in summary["variants"].items()}
    assert aliases == {"baseline": "-", "leap": "previous", "leap_plus": "champion", "fixed_depth": "-"}
    # The verdict itself still says what was so when it was given.
    assert json.loads(Path("verdicts/leap-1.json").read_text())["registry"]["aliases"] == ["champion"]
    assert Path("reports/data_docs").is_dir()
    assert {path.suffix for path in Path("reports/plots").iterdir()} == {".svg", ".json"}
    (run,) = Tracking.open(SETTINGS).find({"leap.report": "embedded"})
    assert (Path("mlruns/artifacts") / run.info.run_id / "artifacts" / "report.html").is_file()
