"""The stages without DVC: the same commands in the same order."""

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_stages", PROJECT / "tools" / "run_stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_commands_are_those_that_dvc_would_run() -> None:
    module = loaded()
    yaml = YAML(typ="safe")
    whole = list(module.items(yaml.load(PROJECT / "dvc.yaml"), yaml.load(PROJECT / "params.yaml")))
    results = [(item.stage, item.command) for item in whole]
    assert results[:2] == [
        ("settings", "python stages/settings.py"),
        ("extract", "python stages/extract.py"),
    ]
    assert ("train", "python stages/train.py --variant leap --seed 1") in results
    assert ("evaluate_sts", "python stages/evaluate_sts.py --variant leap --seed 1 --set software") in results
    assert results[-2:] == [("report", "python stages/report.py"), ("promote", "python stages/promote.py")]
    assert not any("$" in command for _, command in results)
    names = [name for name, _ in results]
    assert names == sorted(names, key=list(dict.fromkeys(names)).index)  # a stage's items stand together
    steps = module.chains(whole)
    assert sorted(command for step in steps for chain in step for command in chain) == sorted(
        command for _, command in results
    )
    students = next(step for step in steps if len(step[0]) > 1)
    assert [command.removeprefix("python stages/") for command in students[0]] == [
        "train.py --variant baseline --seed 1",
        "calibrate.py --variant baseline --seed 1",
        "diagnose.py --variant baseline --seed 1",
        "evaluate_sts.py --variant baseline --seed 1 --set software",
        "evaluate_retrieval.py --variant baseline --seed 1 --set docstrings",
    ]
    # Each judges one checkpoint against others, so all evaluations come before.
    assert steps.index(students) < steps.index(
        [
            ["python stages/gate.py --variant baseline --seed 1"],
            *([f"python stages/gate.py --variant {name} --seed 1"] for name in ("leap", "elastic")),
        ]
    )


def test_items_are_chosen_by_stage_variant_and_seed() -> None:
    module = loaded()
    trained = module.Item("train", {"variant": "leap", "seed": 1}, "python stages/train.py")
    shared = module.Item("extract", {}, "python stages/extract.py")
    for wanted, chosen in (
        ({}, [trained, shared]),
        ({"stage": ["train"]}, [trained]),
        ({"variant": ["leap"], "seed": ["1", "2"]}, [trained, shared]),
        ({"seed": ["2"]}, [shared]),
    ):
        assert [item for item in (trained, shared) if module.is_wanted(item, wanted)] == chosen


def test_chains_share_the_devices_and_a_failure_ends_its_own_only(tmp_path: Path) -> None:
    script = tmp_path / "stage.py"
    script.write_text(
        "import json, os, pathlib, sys, time\n"
        "name, folder, code = sys.argv[1], pathlib.Path(__file__).parent, int(sys.argv[2])\n"
        "begun = time.monotonic()\n"
        "time.sleep(0.3)\n"
        "device = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "(folder / name).write_text(json.dumps([device, begun, time.monotonic()]))\n"
        "sys.exit(code)\n"
    )
    module = loaded()
    chains = [[f"python {script} {name} 0" for name in pair] for pair in ("ab", "cd", "ef")]
    assert module.run_at_once(chains, ["0", "1"]) == []
    spans = {name: json.loads((tmp_path / name).read_text()) for name in "abcdef"}
    for first, second in ("ab", "cd", "ef"):
        assert spans[first][0] == spans[second][0]
        assert spans[first][2] <= spans[second][1]
    for device in "01":
        mine = sorted(span[1:] for span in spans.values() if span[0] == device)
        assert mine
        assert all(first[1] <= second[0] for first, second in pairwise(mine))
    assert {span[0] for span in spans.values()} == {"0", "1"}
    failing = [[f"python {script} g 3", f"python {script} h 0"], [f"python {script} i 0"]]
    assert module.run_at_once(failing, [""]) == [(failing[0][0], 3)]
    assert not (tmp_path / "h").exists()
    assert (tmp_path / "i").exists()


def test_what_is_not_there_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PROJECT)
    for option, what in (("--only", "stage"), ("--variant", "variant"), ("--seed", "seed")):
        monkeypatch.setattr("sys.argv", ["run_stages.py", option, "nothing"])
        with pytest.raises(SystemExit, match=f"error: no {what} nothing in .*: they have "):
            loaded().main()
