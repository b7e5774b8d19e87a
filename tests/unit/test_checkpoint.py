import json
from pathlib import Path

import pytest
from tiny_models import write_folder

from leap.core.errors import UserError
from leap.core.settings import read_settings
from leap.core.stage import Run
from leap.evaluate.open_checkpoint import open_checkpoint

PROFILE = Path(__file__).parents[2] / "profiles" / "embedded.yaml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A project with one model, of 5 layers, whose leap.json has its exit rule."""
    monkeypatch.chdir(tmp_path)
    folder = write_folder(Path("models/leap-1"))
    rule = {"threshold": 0.9, "min_layer": 4, "patience": 3}
    (folder / "leap.json").write_text(json.dumps({"exit": rule}))
    return Run(read_settings(PROFILE), variant="leap", seed=1)


def test_a_checkpoint_is_opened_with_the_rule_that_serves(run: Run) -> None:
    model = open_checkpoint(run, "cpu")
    assert model.depth == 5
    assert (model.rule.threshold, model.rule.min_layer, model.rule.patience) == (0.9, 4, 3)


def test_the_device_is_the_settings_unless_a_caller_names_one(run: Run) -> None:
    assert run.settings.evaluation.device == "auto"
    assert open_checkpoint(run, "cpu").device.type == "cpu"
    with pytest.raises(UserError, match="cuda:99"):
        open_checkpoint(run, "cuda:99")


def test_a_missing_model_is_named_with_the_command_that_writes_it(run: Run) -> None:
    with pytest.raises(UserError, match=r"models/leap-2 is missing: `dvc repro`"):
        open_checkpoint(Run(run.settings, variant="leap", seed=2), "cpu")


def test_an_unknown_variant_is_named(run: Run) -> None:
    with pytest.raises(UserError, match="no variant 'leep'"):
        open_checkpoint(Run(run.settings, variant="leep", seed=1), "cpu")


@pytest.mark.parametrize(("rule", "fault"), [({"min_layer": 6}, "min_layer 6"), ({"patience": 5}, "patience 5")])
def test_a_rule_that_does_not_fit_the_depth_is_refused(run: Run, rule: dict[str, int], fault: str) -> None:
    path = Path("models/leap-1/leap.json")
    path.write_text(json.dumps({"exit": {"threshold": 0.9, "min_layer": 4, "patience": 1, **rule}}))
    with pytest.raises(UserError, match=rf"leap\.json does not hold an exit rule for 5 layers \(exit: {fault}"):
        open_checkpoint(run, "cpu")
