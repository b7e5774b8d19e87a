from pathlib import Path

import pytest
from tiny_models import write_folder

from leap.core.errors import UserError
from leap.core.settings import Settings, parse_settings, read_settings
from leap.evaluate.open_checkpoint import open_checkpoint

PROFILE = Path(__file__).parents[2] / "profiles" / "embedded.yaml"


def with_exit(**changes: object) -> Settings:
    """The embedded settings with a variant `leap` of other exit settings, and one that is a ready model."""
    content = read_settings(PROFILE).model_dump(mode="json")
    ready = {"kind": "local", "path": "somewhere"}
    content["variants"]["leap"] |= {"exit": changes}
    content["variants"]["ready"] = {"description": "a model", "checkpoint": ready, "exit": changes}
    return parse_settings(content, "test")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("leap-1", "ready-1"):
        write_folder(Path("models") / name)


def test_the_rule_is_the_settings_and_not_the_folders() -> None:
    Path("models/leap-1/leap.json").write_text('{"exit": {"threshold": 0.5, "min_layer": 1, "patience": 1}}')
    model, rule = open_checkpoint(with_exit(threshold=0.9, min_layer=4, patience=3), "leap", 1, "cpu")
    assert model.depth == 5
    assert (rule.threshold, rule.min_layer, rule.patience) == (0.9, 4, 3)


def test_a_missing_checkpoint() -> None:
    with pytest.raises(UserError, match="models/leap-2 is missing"):
        open_checkpoint(with_exit(min_layer=4), "leap", 2, "cpu")


def test_an_unknown_variant() -> None:
    with pytest.raises(UserError, match="no variant 'leep'"):
        open_checkpoint(with_exit(min_layer=4), "leep", 1, "cpu")


@pytest.mark.parametrize("name", ["leap", "ready"])
def test_a_min_layer_above_the_depth(name: str) -> None:
    with pytest.raises(UserError, match=rf"variants\.{name}\.exit\.min_layer: 6 is above the 5 layers"):
        open_checkpoint(with_exit(min_layer=6), name, 1, "cpu")
    assert open_checkpoint(with_exit(min_layer=5), name, 1, "cpu")[1].min_layer == 5


def test_a_patience_as_large_as_the_depth() -> None:
    with pytest.raises(UserError, match=r"variants\.ready\.exit\.patience: 5"):
        open_checkpoint(with_exit(min_layer=4, patience=5), "ready", 1, "cpu")
