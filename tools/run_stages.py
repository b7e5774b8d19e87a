"""Runs the stages of dvc.yaml in their order without DVC, where only PyTorch and the library are there.

    python tools/run_stages.py                                  # all
    python tools/run_stages.py --only extract,cache_teacher,train,diagnose
    python tools/run_stages.py --only train,diagnose --devices 0,1     # a checkpoint on each at a time
    python tools/run_stages.py --only train,diagnose --variant leap,baseline --seed 2,3

The commands are dvc.yaml's own, a matrix item each, so nothing here says what a stage does. A checkpoint is
trained, diagnosed and evaluated before its device begins the next one; naming a device twice puts two on it.
An interrupted training goes on where it was.
"""

import argparse
import itertools
import os
import queue
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

# A checkpoint's stages that need nothing of another checkpoint, and no quiet machine.
OF_A_CHECKPOINT = ("train", "calibrate", "diagnose", "evaluate_sts", "evaluate_retrieval")


@dataclass(frozen=True)
class Item:
    """One command of a stage, and which item of the stage's matrix it is."""

    stage: str
    axes: dict[str, Any]
    command: str


def items(pipeline: dict[str, Any], params: dict[str, Any]) -> Iterator[Item]:
    """Every stage's commands, a matrix item each, in the order of the file."""
    for name, stage in pipeline["stages"].items():
        axes = {axis: _values(value, params) for axis, value in stage.get("matrix", {}).items()}
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            options = " ".join(f"--{axis} {shlex.quote(str(value))}" for axis, value in chosen.items())
            yield Item(name, chosen, stage["cmd"].replace("${item}", options))


def chains(chosen: Iterable[Item]) -> list[list[list[str]]]:
    """The commands as steps, one after the other, of chains that can run at once.

    A chain is what belongs to one checkpoint, in the order of the stages; a stage of no checkpoint is a step
    of its own, and so is each stage that compares checkpoints, an item a chain.
    """
    steps: list[list[list[str]]] = []
    for together, group in itertools.groupby(chosen, key=_step):
        found: dict[Any, list[str]] = {}
        for number, item in enumerate(group):
            key = (item.axes["variant"], item.axes["seed"]) if together == "checkpoints" else number
            found.setdefault(key, []).append(item.command)
        steps.append(list(found.values()))
    return steps


def is_wanted(item: Item, wanted: dict[str, list[str]]) -> bool:
    """Whether an item is of the named stages, variants and seeds; what it has no axis for rules none out."""
    named = {"stage": item.stage, **item.axes}
    return all(str(named[axis]) in names for axis, names in wanted.items() if axis in named)


def _step(item: Item) -> str:
    return "checkpoints" if item.stage in OF_A_CHECKPOINT else item.stage


def _values(value: Any, params: dict[str, Any]) -> list[Any]:
    """A matrix axis: a list as it is, or `${key}` of params.yaml; of a mapping its keys."""
    if isinstance(value, str):
        value = params[value.removeprefix("${").removesuffix("}")]
    return list(value)


def run_at_once(chains: list[list[str]], devices: list[str]) -> list[tuple[str, int]]:
    """Runs chains of commands, one chain on each CUDA device at a time; one that fails ends its chain only.

    Returns:
        The commands that failed, with their exit codes.
    """
    free: queue.Queue[str] = queue.Queue()
    for device in devices:
        free.put(device)
    failed: list[tuple[str, int]] = []

    def one(chain: list[str]) -> None:
        device = free.get()
        chosen = {"CUDA_VISIBLE_DEVICES": device} if device else {}
        try:
            for command in chain:
                sys.stderr.write(f"> {command}{f'    (device {device})' if device else ''}\n")
                program = [sys.executable, *shlex.split(command)[1:]]
                ended = subprocess.run(program, env=os.environ | chosen)  # nosec B603  # dvc.yaml's own, no shell
                if ended.returncode:
                    failed.append((command, ended.returncode))
                    return
        finally:
            free.put(device)

    with ThreadPoolExecutor(len(devices)) as threads:
        list(threads.map(one, chains))
    return failed


def main() -> None:
    """Runs the chosen stages and stops after the first step in which something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of stages, with commas between; all if left out")
    parser.add_argument("--variant", help="of stages that have one: only these, with commas between")
    parser.add_argument("--seed", help="likewise")
    parser.add_argument("--devices", default="", help="CUDA devices, with commas between, one checkpoint on each")
    arguments = parser.parse_args()
    yaml = YAML(typ="safe")
    pipeline, params = yaml.load(Path("dvc.yaml")), yaml.load(Path("params.yaml"))
    known = {"stage": pipeline["stages"], "variant": params["variants"], "seed": params["seeds"]}
    asked = {"stage": arguments.only, "variant": arguments.variant, "seed": arguments.seed}
    wanted = {axis: names.split(",") for axis, names in asked.items() if names is not None}
    for axis, names in wanted.items():
        have = [str(name) for name in known[axis]]
        unknown = ", ".join(name for name in names if name not in have)
        if unknown:
            sys.exit(f"error: no {axis} {unknown} in dvc.yaml and params.yaml: they have {', '.join(have)}")
    chosen = [item for item in items(pipeline, params) if is_wanted(item, wanted)]
    for step in chains(chosen):
        failed = run_at_once(step, arguments.devices.split(","))
        if failed:
            ended = "\n".join(f"  {command}    (code {code})" for command, code in failed)
            sys.exit(f"error: these failed; fix it and run this again:\n{ended}")


if __name__ == "__main__":
    main()
