"""The stages without DVC: the same commands in the same order."""

import importlib.util
from pathlib import Path

from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]


def test_the_commands_are_those_that_dvc_would_run() -> None:
    spec = importlib.util.spec_from_file_location("run_stages", PROJECT / "scripts" / "run_stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yaml = YAML(typ="safe")
    found = list(module.commands(yaml.load(PROJECT / "dvc.yaml"), yaml.load(PROJECT / "params.yaml")))
    assert found[:2] == [
        ("settings", "python stages/settings.py"),
        ("extract", "python stages/extract.py"),
    ]
    assert ("train", "python stages/train.py --variant leap --seed 1") in found
    assert ("evaluate_sts", "python stages/evaluate_sts.py --variant leap --seed 1 --set software") in found
    assert found[-1] == ("report", "python stages/report.py")
    assert not any("$" in command for _, command in found)
    names = [name for name, _ in found]
    assert names == sorted(names, key=list(dict.fromkeys(names)).index)  # a stage's items stand together
