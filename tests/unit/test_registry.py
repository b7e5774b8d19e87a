import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_evidence import made_settings, write_evidence
from made_store import bare_model, enter_project, logged, verdict_on
from made_store import place as placed_by
from tiny_models import write_folder

from leap.core.errors import UserError
from leap.core.files import read_json, write_with_checksum
from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash, model_hash
from leap.gate.judgement import judge_checkpoint
from leap.registry.package_model import REQUIRED, write_model_folder
from leap.registry.project_runs import log_study_now
from leap.registry.promotion import register, synchronise
from leap.registry.ranking import compare, less_is_better
from leap.registry.runtime_code import imports, runtime_modules
from leap.registry.versions import Standing, _Registry, history, history_text, note_refusal, promote, rollback
from leap.tracking import Tracking
from leap.tracking.store import DATABASE, StoreError

SETTINGS = made_settings()
DATA = {"pairs": "hash"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models are registered as their bare folder: MLflow's check of the environment takes seconds."""

    monkeypatch.setattr("leap.registry.checkpoint_run.write_model_folder", bare_model)
    return enter_project(tmp_path / "project", monkeypatch)


@pytest.fixture
def packaged(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where models are registered as MLflow serves them."""
    monkeypatch.setattr("leap.registry.checkpoint_run.write_model_folder", write_model_folder)
    return project


def model(variant: str) -> Path:
    folder = Path("models") / f"{variant}-1"
    if not folder.exists():
        write_folder(folder, layers=3, seed=sum(map(ord, variant)) + 1)
    return folder


def verdict(variant: str, value: float | None, **options: Any) -> dict[str, Any]:
    model(variant)
    return verdict_on(variant, value, **options)


def place(variant: str, value: float | None, data: dict[str, str] = DATA, **options: Any) -> Standing:
    model(variant)
    return placed_by(SETTINGS, variant, value, data, **options)


def refuse(variant: str) -> Standing | None:
    model(variant)
    tracking = Tracking.open(SETTINGS, required=True)
    return note_refusal(tracking, verdict(variant, 0.78, passed=False), logged(tracking, variant), DATA)


def held() -> dict[str, int]:
    """Alias to version."""
    return {alias: item.version for item in history(Tracking.open(SETTINGS)) for alias in item.aliases}


def test_the_better_one_becomes_champion_and_the_old_one_previous(project: Path) -> None:
    assert place("leap", 0.78) == Standing(1, ["champion"], "became champion: there was none")
    second = place("elastic", 0.80)
    assert second.decision == "became champion: sts.x 0.8 is better than version 1's 0.78"
    assert held() == {"champion": 2, "previous": 1}


@pytest.mark.parametrize(("value", "word"), [(0.77, "worse than"), (0.78, "equal to")])
def test_a_worse_or_equal_one_stays_candidate(project: Path, value: float, word: str) -> None:
    place("leap", 0.78)
    placed = place("elastic", value)
    assert placed.aliases == ["candidate"]
    assert placed.decision == f"stays out: sts.x {value} is {word} version 1's 0.78"
    assert held() == {"champion": 1, "candidate": 2}


def test_again_changes_nothing(project: Path) -> None:
    place("leap", 0.78)
    second, third = place("elastic", 0.80), place("baseline", 0.70)
    before = held()
    for _ in range(2):
        assert place("leap", 0.78) == Standing(
            1, ["previous"], "stays out: sts.x 0.78 is worse than version 2's 0.8"
        )
    assert place("elastic", 0.80) == second
    assert place("baseline", 0.70) == third
    assert held() == before == {"champion": 2, "previous": 1, "candidate": 3}


def test_a_candidate_that_gets_better_evidence_takes_over(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.70)
    place("elastic", 0.79)
    assert held() == {"champion": 2, "previous": 1}


def test_an_older_candidate_does_not_take_the_alias_back(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.70)
    place("baseline", 0.60)
    assert place("elastic", 0.70).aliases == []
    assert held() == {"champion": 1, "candidate": 3}


def test_a_champion_measured_on_other_data_gives_way(project: Path) -> None:
    place("leap", 0.90)
    placed = place("elastic", 0.50, data={"pairs": "other"})
    assert placed.decision == "became champion: version 1 was measured on other data and cannot be compared"
    assert held() == {"champion": 2, "previous": 1}


def test_a_refused_model_and_one_to_compare_with_are_never_registered(project: Path) -> None:
    with pytest.raises(UserError, match="leap-1 is refused by the gate"):
        place("leap", 0.99, passed=False)
    assert refuse("leap") is None
    tracking = Tracking.open(SETTINGS)
    with pytest.raises(UserError, match=r"leap-1 is gate.baseline, which others are compared with"):
        promote(tracking, {**verdict("leap", 0.9), "role": "baseline"}, logged(tracking, "leap"), DATA)
    assert history(tracking) == []
    assert tracking.client is not None
    assert list(tracking.client.search_registered_models()) == []


def test_the_champions_alias_moves_last(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place("leap", 0.78)
    original = _Registry.alias

    def broken(self: _Registry, alias: str, version: Any) -> None:
        if alias == "champion":
            raise StoreError("the server went away")
        original(self, alias, version)

    with monkeypatch.context() as patch:
        patch.setattr(_Registry, "alias", broken)
        with pytest.raises(UserError, match="the server went away"):
            place("elastic", 0.80)
    assert held() == {"champion": 1, "previous": 1}
    assert place("elastic", 0.80).aliases == ["champion"]
    assert held() == {"champion": 2, "previous": 1}


def test_an_upload_that_breaks_registers_nothing_and_the_next_try_does(project: Path, monkeypatch) -> None:
    from mlflow import MlflowClient

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifacts", broken)
        with pytest.raises(StoreError, match="disk full"):
            place("leap", 0.78)
    assert history(Tracking.open(SETTINGS)) == []
    assert place("leap", 0.78) == Standing(1, ["champion"], "became champion: there was none")


def test_what_a_killed_upload_left_is_completed_and_not_doubled(project: Path, monkeypatch) -> None:
    from mlflow import MlflowClient

    client = Tracking.open(SETTINGS).client
    assert client is not None
    for name in (
        *("create_logged_model", "log_model_artifacts", "finalize_logged_model"),
        *("create_registered_model", "create_model_version", "set_registered_model_alias"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, name, killed)
            with pytest.raises(Killed):
                place("leap", 0.78)
    assert place("leap", 0.78).aliases == ["champion"]
    (uploaded,) = client.search_logged_models(["1"])
    assert str(uploaded.status) == "READY"
    version = client.get_model_version(SETTINGS.registered_model, "1")
    assert version.source == f"models:/{uploaded.model_id}"


def killed(*_: Any, **__: Any) -> None:
    raise Killed


SAVED = Path("saved.db")


class Killed(BaseException):
    """A kill: no program catches it."""


# Every call that the registry makes on the store and that changes it.
CHANGES = (
    "create_logged_model", "log_model_artifacts", "finalize_logged_model", "create_registered_model",
    "create_model_version", "delete_model_version", "update_model_version", "set_model_version_tag",
    "set_registered_model_alias", "delete_registered_model_alias",
)  # fmt: skip


class Store:
    """Lets so many changes of the store through, then kills."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.made = 0
        from mlflow import MlflowClient

        for name in CHANGES:
            patch.setattr(MlflowClient, name, self._counted(getattr(MlflowClient, name)))

    def _counted(self, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if self.left is not None and self.made >= self.left:
                raise Killed
            self.made += 1
            return original(*args, **options)

        return call


def right_state() -> None:
    """Whoever has an alias is a whole model with a verdict that passes."""
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    for item in history(tracking):
        for alias in item.aliases:
            assert item.passed, (item.version, alias)
            version = tracking.client.get_model_version(SETTINGS.registered_model, str(item.version))
            assert version.description
            model = tracking.client.get_logged_model(version.source.rpartition("/")[2])
            assert model.status == "READY"
            assert list(Path(model.artifact_location.removeprefix("file://")).rglob("model.safetensors"))


def copy_store(source: Path, target: Path) -> None:
    """Into the same file, for MLflow keeps it open. Artifacts of a promotion that was killed may stay."""
    with sqlite3.connect(source) as one, sqlite3.connect(target) as other:
        one.backup(other)
    one.close()
    other.close()


def test_a_change_of_champions_killed_between_any_two_changes(project: Path, monkeypatch) -> None:
    """Killed after 0, 1, 2 ... changes of the store and done again: the end is always the same."""
    place("leap", 0.70)
    place("elastic", 0.78)
    store = Store(monkeypatch)
    copy_store(DATABASE, SAVED)
    place("baseline", 0.80)
    assert held() == {"champion": 3, "previous": 2}
    changes = store.made
    assert changes > 10
    for allowed in range(changes):
        copy_store(SAVED, DATABASE)
        store.made, store.left = 0, allowed
        with pytest.raises(Killed):
            place("baseline", 0.80)
        store.left = None
        right_state()
        now = held()
        assert (now["champion"], now["previous"]) in ((2, 1), (2, 2), (3, 2)), now
        place("baseline", 0.80)
        assert held() == {"champion": 3, "previous": 2}, allowed


def test_a_rollback_killed_between_any_two_changes_ends_right_by_the_gate(project: Path, monkeypatch) -> None:
    place("leap", 0.78)
    place("elastic", 0.80)
    copy_store(DATABASE, SAVED)
    store = Store(monkeypatch)
    rollback(Tracking.open(SETTINGS))
    assert held() == {"champion": 1, "previous": 2}
    changes = store.made
    for allowed in range(changes):
        copy_store(SAVED, DATABASE)
        store.made, store.left = 0, allowed
        with pytest.raises(Killed):
            rollback(Tracking.open(SETTINGS))
        store.left = None
        assert held()["champion"] in (1, 2)
        if held() != {"champion": 1, "previous": 2}:
            rollback(Tracking.open(SETTINGS))
        assert held() == {"champion": 1, "previous": 2}, allowed


def test_rollback_and_the_gate_respects_it(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.80)
    tracking = Tracking.open(SETTINGS)
    assert rollback(tracking).decision == "made champion again by a rollback in place of version 2"
    assert held() == {"champion": 1, "previous": 2}
    place("elastic", 0.80)
    assert held() == {"champion": 1, "previous": 2}


def test_a_rollback_to_a_refused_version_is_asked_for_by_name(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.80)
    refuse("leap")
    tracking = Tracking.open(SETTINGS)
    with pytest.raises(UserError, match=r"version 1, .* is refused .* `leap rollback --force`"):
        rollback(tracking)
    assert held() == {"champion": 2, "previous": 1}
    again = rollback(tracking, force=True)
    assert again.decision == "made champion again by a rollback in place of version 2, though the gate refuses it"
    assert held() == {"champion": 1, "previous": 2}


def test_a_refused_version_loses_candidate(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.70)
    assert held() == {"champion": 1, "candidate": 2}
    assert refuse("elastic") == Standing(2, [], "refused by the gate")
    assert held() == {"champion": 1}


def test_what_a_rollback_took_back_stays_out_and_others_do_not(project: Path) -> None:
    place("leap", 0.78)
    place("elastic", 0.80)
    rollback(Tracking.open(SETTINGS))
    assert place("baseline", 0.79).aliases == ["champion"]
    assert held() == {"champion": 3, "previous": 1}
    assert place("elastic", 0.80).decision == "taken back by a rollback"
    assert held() == {"champion": 3, "previous": 1}


def test_the_history_says_who_was_champion_when(project: Path) -> None:
    assert history_text(history(Tracking.open(SETTINGS))) == "nothing is registered"
    place("leap", 0.78)
    place("elastic", 0.80)
    place("elastic", 0.80)
    rollback(Tracking.open(SETTINGS))
    versions = history(Tracking.open(SETTINGS))
    assert [(item.version, item.name, item.aliases) for item in versions] == [
        (2, "elastic-1", ["previous"]),
        (1, "leap-1", ["champion"]),
    ]
    text = history_text(versions)
    happened = [line.split("  ", 1)[1] for line in text.split("\n\n")[1].splitlines()]
    assert happened == [
        "version 1 became champion: there was none",
        "version 2 became champion: sts.x 0.8 is better than version 1's 0.78",
        "version 1 made champion again by a rollback in place of version 2",
    ]
    assert "sts.x 0.8" in text


def test_a_refused_champion_keeps_its_alias_until_a_passing_model_comes(project: Path) -> None:
    place("leap", 0.78)
    refused = refuse("leap")
    assert refused is not None
    assert refused.aliases == ["champion"]
    assert not history(Tracking.open(SETTINGS))[0].passed
    placed = place("elastic", 0.60)
    assert placed.decision == "became champion: version 1 is refused now"
    assert held() == {"champion": 2, "previous": 1}


def test_the_same_weights_with_another_rule_are_another_version_and_take_over(project: Path) -> None:
    """Whatever their figures: what the settings say now is what serves, if it passes."""
    place("leap", 0.78)
    rule = json.dumps({"exit": {"threshold": 0.97, "min_layer": 2, "patience": 1}})
    (model("leap") / "leap.json").write_text(rule)
    placed = place("leap", 0.77)
    reason = "version 1 has the same weights with another exit rule, tokenizer or code"
    assert placed == Standing(2, ["champion"], f"became champion: {reason}")
    assert held() == {"champion": 2, "previous": 1}
    (model("leap") / "leap.json").unlink()
    assert place("leap", 0.78).version == 1
    assert held() == {"champion": 1, "previous": 2}


def test_two_projects_with_their_own_data_do_not_take_the_alias_from_each_other(project: Path) -> None:
    place("leap", 0.90)
    place("elastic", 0.50, data={"pairs": "other"})
    assert place("leap", 0.90).aliases == ["previous"]
    assert place("elastic", 0.50, data={"pairs": "other"}).aliases == ["champion"]


def test_rollback_without_a_previous_champion(project: Path) -> None:
    place("leap", 0.78)
    with pytest.raises(UserError, match="no version with alias previous"):
        rollback(Tracking.open(SETTINGS))


def test_the_version_tells_its_verdict(project: Path) -> None:
    place("leap", 0.78)
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    version = tracking.client.get_model_version(SETTINGS.registered_model, "1")
    assert version.description == "leap-1: 1 of 1 checks pass\n\n- \N{CHECK MARK} similarity: fine"
    assert version.tags["leap.checkpoint"] == checkpoint_hash(model("leap"))
    assert version.tags["leap.model"] == model_hash(model("leap"))
    assert json.loads(version.tags["leap.primary_value"]) == 0.78


def test_the_champion_loads_without_pickle_and_gives_the_encoders_vectors(packaged: Path) -> None:
    place("leap", 0.78)
    import mlflow
    import pandas as pd

    from leap.exits import LeapEncoder

    texts = ["be do", "do bo di"]
    model = mlflow.pyfunc.load_model("models:/leap-docstrings@champion")
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


def test_a_changed_threshold_serves_by_the_new_rule_and_a_rollback_by_the_old_one(packaged: Path) -> None:
    import mlflow
    import pandas as pd

    from leap.exits import LeapEncoder

    texts = pd.DataFrame({"sentence": ["be do", "do bo di", "fa"]})

    def exits(uri: str) -> list[int]:
        served = mlflow.pyfunc.load_model(uri).predict(texts, params={"return_exit_layers": True})
        return [int(layer) for layer in served["exit_layer"]]

    expected = {}
    for threshold in (1.0, -1.0):
        rule = {"exit": {"threshold": threshold, "min_layer": 2, "patience": 1}}
        (model("leap") / "leap.json").write_text(json.dumps(rule))
        place("leap", 0.78)
        encoder = LeapEncoder(model("leap"))
        expected[threshold] = encoder.encode(list(texts["sentence"]), return_exit_layers=True)[1].tolist()
        assert exits("models:/leap-docstrings@champion") == expected[threshold]
    assert expected == {1.0: [3, 3, 3], -1.0: [2, 2, 2]}
    assert exits("models:/leap-docstrings/1") == expected[1.0]
    rollback(Tracking.open(SETTINGS))
    assert exits("models:/leap-docstrings@champion") == expected[1.0]


def test_the_registered_model_runs_by_its_own_code_alone(packaged: Path) -> None:
    place("leap", 0.78)
    (folder,) = (path.absolute() for path in Path("mlruns/artifacts/models").glob("*/artifacts"))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import leap.serve; from leap.exits import LeapEncoder\n"
        "print(LeapEncoder(sys.argv[2], 'cpu').encode(['be do']).shape, leap.__file__)\n"
    )
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", code, str(folder / "code"), str(folder / "artifacts" / "leap-1")]
    done = subprocess.run(command, env=alone, cwd="/", capture_output=True, text=True)
    shape, _, module = done.stdout.strip().rpartition(" ")
    assert shape == "(1, 16)", done.stderr
    assert Path(module) == folder / "code" / "leap" / "__init__.py"


def test_the_runtime_is_a_small_part_of_the_package_and_its_imports_are_required() -> None:
    modules = runtime_modules()
    assert {"leap", "leap.exits.leap_encoder", "leap.models.packed_encoder"} <= modules
    assert not any(name.startswith(("leap.gate", "leap.registry", "leap.data")) for name in modules)
    roots = {name.partition(".")[0] for module in modules for name in imports(module)}
    # Triton and the CUDA bindings come with PyTorch's CUDA builds and huggingface_hub with tokenizers; they
    # are imported only where they are used, on CUDA and for a hub id.
    third_party = roots - set(sys.stdlib_module_names) - {"leap", "triton", "cuda", "huggingface_hub"}
    distributions = packages_distributions()
    assert {name for name in third_party if not set(distributions[name]) & set(REQUIRED)} == set()
    assert {"torch", "numpy", "safetensors"} <= third_party


def entry(value: str, metric: str = "sts.x", data: str = "d", **more: str) -> dict[str, str]:
    tags = {"leap.primary_metric": metric, "leap.primary_value": value, "leap.primary_data": data}
    own = {"passed": "true", "variant": f"v{value}", "decision": ""}
    return {**tags, **{f"leap.{key}": text for key, text in {**own, **more}.items()}}


def test_comparison() -> None:
    assert compare(entry("0.2", "sts.drop"), entry("0.3", "sts.drop"), 1)[0]
    assert not compare(entry("0.3", "sts.drop"), entry("0.2", "sts.drop"), 1)[0]
    assert [less_is_better(f"exit.{name}") for name in ("expected_layers", "nn_fail_50", "nn_at_10")] == [
        True,
        True,
        False,
    ]
    assert not compare(entry("0.2"), entry("0.2", variant="other"), 1)[0]  # equal is not better
    assert not compare(entry("null"), entry("0.2"), 1)[0]
    assert compare(entry("0.2"), entry("null"), 1)[0]
    assert compare(entry("0.1"), entry("0.2", passed="false"), 4) == (True, "version 4 is refused now")
    assert compare(entry("0.1"), entry("0.2", metric="sts.y"), 4) == (
        True,
        "version 4 was measured by another metric and cannot be compared",
    )


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of four variants with evidence; elastic is the best, baseline never leaves early."""
    changes: dict[str, Any] = {
        "baseline": {"diagnose": {"exit": {"rate": 0.0}}},
        "elastic": {"sts": {"spearman_exit": 0.795}},
    }
    folder = tmp_path_factory.mktemp("measured")
    with contextlib.chdir(folder):
        for variant in SETTINGS.variants:
            model(variant)
            write_evidence(Path(), SETTINGS, variant, **changes.get(variant, {}))
    return folder


@pytest.fixture
def measured(project: Path, measurements: Path) -> Path:
    shutil.copytree(measurements, project, dirs_exist_ok=True)
    return project


def run_gate(*variants: str) -> dict[str, Any]:
    """The stages gate and promote; returns where the registered models stand."""
    for variant in variants or SETTINGS.variants:
        write_with_checksum(Path(f"verdicts/{variant}-1.json"), judge_checkpoint(SETTINGS, variant, 1)[1])
    standings: dict[str, Any] = synchronise(SETTINGS, Project())["registry"]
    return standings


def test_promote_registers_what_passes_and_writes_into_no_verdict(measured: Path) -> None:
    standings = run_gate()
    first = Path("verdicts/leap-1.json").read_bytes()
    assert {name: item["aliases"] for name, item in standings.items()} == {
        "leap-1": ["champion"], "elastic-1": ["champion"]
    }  # fmt: skip
    assert held() == {"champion": 2, "previous": 1}
    assert Path("verdicts/leap-1.json").read_bytes() == first
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = tracking.find({"leap.verdict": "passed", "leap.variant": "leap"})
    assert tracking.client.get_model_version(SETTINGS.registered_model, "1").run_id == run.info.run_id
    assert {item.path for item in tracking.client.list_artifacts(run.info.run_id, "verdict")} == {
        "verdict/leap-1.json"
    }
    assert {name for name in run.data.metrics if "/" not in name} == {
        "layers", "exit_rate", "similarity", "nn_at_10", "sts_exit", "ndcg_query", "ndcg_exit", "speed_up"
    }  # fmt: skip


def test_nothing_to_do_is_found_without_mlflow_and_any_change_is_seen(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_gate()
    opened: list[Settings] = []
    original = Tracking.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type, settings: Settings, required: bool = False) -> Tracking:
        opened.append(settings)
        tracking: Tracking = original(cls, settings, required)
        return tracking

    def opens() -> bool:
        opened.clear()
        synchronise(SETTINGS, Project())
        return bool(opened)

    monkeypatch.setattr(Tracking, "open", classmethod(noted))
    assert not opens()
    changes: list[Callable[[], object]] = [
        lambda: os.utime("verdicts/leap-1.json"),
        lambda: next(Path("mlruns/artifacts").rglob("model.safetensors")).touch(),
        lambda: Path("models/leap-1/notes.txt").touch(),
        lambda: Path("models/leap-1/notes.txt").unlink(),
        lambda: Tracking.open(SETTINGS).create_run("by hand", {}),
        lambda: shutil.rmtree("mlruns"),
    ]
    for change in changes:
        change()
        assert opens()
        assert not opens()
    assert held() == {"champion": 2, "previous": 1}  # a lost store is complete again


def test_an_experiment_of_dvc_is_logged_and_promotes_only_if_asked(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "0" * 40)
    monkeypatch.setenv("DVC_EXP_NAME", "bold-idea")
    assert run_gate() == {}
    assert held() == {}
    assert len(Tracking.open(SETTINGS).find({"dvc.experiment": "bold-idea", "leap.verdict": "passed"})) == 3
    asked = made_settings(tracking={"promote": "always"})
    assert set(synchronise(asked, Project())["registry"]) == {"leap-1", "elastic-1"}


def test_a_temporary_copy_of_dvc_logs_into_the_projects_store(measured: Path, monkeypatch) -> None:
    copy = measured / ".dvc/tmp/exps/standalone/tmp1"
    for name in ("models", "evaluations", "data"):
        shutil.copytree(measured / name, copy / name)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "0" * 40)
    run_gate()
    assert not (copy / "mlruns").exists()
    shutil.rmtree(copy)
    monkeypatch.chdir(measured)
    tracking = Tracking.open(SETTINGS)
    assert tracking.client is not None
    (run,) = tracking.find({"leap.variant": "leap"})
    assert run.data.tags["leap.verdict"] == "passed"
    assert tracking.client.download_artifacts(run.info.run_id, "evidence/diagnose.json")


def test_a_model_to_compare_with_is_logged_and_not_registered(measured: Path) -> None:
    assert run_gate("fixed_depth") == {}
    assert read_json(Path("verdicts/fixed_depth-1.json"), "")["passed"]
    assert held() == {}


def test_the_registered_folder_has_its_card(measured: Path, packaged: Path) -> None:
    run_gate("leap")
    cards = Path("mlruns/artifacts/models").rglob("README.md")
    (card,) = (path for path in cards if "leap-docstrings-leap-1" in path.read_text())
    assert (card.parent / "model.safetensors").is_file()


def test_a_champion_that_is_refused_later_is_pointed_out(measured: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_gate("leap")
    write_evidence(measured, SETTINGS, "leap", latency={"speed_up": 0.9, "speed_up_ci95": [0.85, 0.95]})
    assert run_gate("leap")["leap-1"]["aliases"] == ["champion"]
    assert "version 1 is refused now but has the alias champion" in caplog.text


def test_a_verdict_on_another_model_registers_nothing(measured: Path) -> None:
    run_gate("leap")
    (model("elastic") / "leap.json").write_text("{}")
    tracking = Tracking.open(SETTINGS, required=True)
    with pytest.raises(UserError, match="measured on model"):
        register(tracking, Project().checkpoint("elastic", 1), verdict("elastic", 0.9))
    assert held() == {"champion": 1}


def test_the_data_and_the_studies_have_runs_of_their_own(measured: Path) -> None:
    write_with_checksum(Path("data/extract.json"), {"sources": {"docstrings": {"rows": 7000}}, "kept": 6900})
    settings = SETTINGS.study("beta").model_dump(mode="json", exclude={"description"})
    row = {"strategy": "converged", "spearman": 0.7}
    figures = {
        seed: {
            "checkpoint": "c",
            "spearman_exit": 0.7 + seed / 100,
            "training": {"seconds": 60.0 + seed},
            "thresholds": [{**row, "threshold": 0.9}, {**row, "threshold": 0.95}],
        }
        for seed in (1, 2)
    }
    study = {
        "study": "beta", "description": "the weight", "settings": settings,
        "set": "software", "data": {"data/similarity/software.parquet": "d" * 64},
        "variants": {"beta_01": {"description": "b", "seeds": {str(seed): row for seed, row in figures.items()}}},
    }  # fmt: skip
    write_with_checksum(Path("studies/beta.json"), study)
    log_study_now(SETTINGS, Path("studies/beta.json"))  # as the stage does; promote finds it there
    run_gate("leap")
    run_gate("leap")
    tracking = Tracking.open(SETTINGS)
    (data,) = tracking.find({"leap.profile": "embedded"}, "attributes.run_name = 'data'")
    assert data.data.metrics == {"extract/sources/docstrings/rows": 7000.0, "extract/kept": 6900.0}
    assert data.data.params["data.held_out"] == "0.25"
    (parent,) = tracking.find({"leap.study": "beta"})
    children = tracking.find({"mlflow.parentRunId": parent.info.run_id})
    assert {run.info.run_name: run.data.metrics["spearman_exit"] for run in children} == {
        "beta_01-1": pytest.approx(0.71),
        "beta_01-2": pytest.approx(0.72),
    }
    first = next(run for run in children if run.data.tags["leap.seed"] == "1")
    assert (first.data.params["loss.beta"], first.data.metrics["training/seconds"]) == ("0.1", 61.0)
    assert (parent.data.params["sentences"], parent.data.tags["mlflow.note.content"]) == ("1500", "the weight")
    (given,) = first.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("software", "d" * 32)
    assert tracking.client is not None
    by_theta = tracking.client.get_metric_history(first.info.run_id, "thresholds/converged/spearman")
    assert {point.step: point.value for point in by_theta} == {90: 0.7, 95: 0.7}
