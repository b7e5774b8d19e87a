"""The stages without DVC: the same commands in the same order."""

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_stages", PROJECT / "scripts" / "run_stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_commands_are_those_that_dvc_would_run() -> None:
    module = loaded()
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


def test_items_share_the_devices_and_none_starts_after_a_failure(tmp_path: Path) -> None:
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
    assert module.run_at_once([f"python {script} {name} 0" for name in "abcd"], ["0", "1"]) == [0, 0, 0, 0]
    spans = [json.loads((tmp_path / name).read_text()) for name in "abcd"]
    for device in "01":
        mine = sorted(span[1:] for span in spans if span[0] == device)
        assert mine
        assert all(first[1] <= second[0] for first, second in pairwise(mine))
    assert {span[0] for span in spans} == {"0", "1"}
    assert module.run_at_once([f"python {script} e 3", f"python {script} f 0"], [""]) == [3]
    assert not (tmp_path / "f").exists()
