"""Runs the stages of dvc.yaml in their order without DVC, where only PyTorch and the library are there.

    python scripts/run_stages.py                                  # all
    python scripts/run_stages.py --only extract,cache_teacher,train,diagnose
    python scripts/run_stages.py --only train,diagnose --devices 0,1    # as many items of a stage at once

The commands are dvc.yaml's own, a matrix item each, so nothing here says what a stage does. A student that is
trained already from the same settings, data and code is kept; an interrupted run goes on where it was.
"""

import argparse
import itertools
import os
import queue
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def commands(pipeline: dict[str, Any], params: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every stage's name and command, a matrix item each, in the order of the file."""
    for name, stage in pipeline["stages"].items():
        axes = {axis: _values(value, params) for axis, value in stage.get("matrix", {}).items()}
        for item in itertools.product(*axes.values()):
            chosen = dict(zip(axes, item, strict=True))
            options = " ".join(f"--{axis} {shlex.quote(str(value))}" for axis, value in chosen.items())
            yield name, stage["cmd"].replace("${item}", options)


def _values(value: Any, params: dict[str, Any]) -> list[Any]:
    """A matrix axis: a list as it is, or `${key}` of params.yaml; of a mapping its keys."""
    if isinstance(value, str):
        value = params[value.removeprefix("${").removesuffix("}")]
    return list(value)


def run_at_once(commands: list[str], devices: list[str]) -> list[int]:
    """Runs the commands, one on each CUDA device at a time, and starts none after one that failed.

    Returns:
        The exit code of each, in order; those not started are left out.
    """
    free: queue.Queue[str] = queue.Queue()
    for device in devices:
        free.put(device)
    failed = False

    def one(command: str) -> int | None:
        nonlocal failed
        device = free.get()
        try:
            if failed:
                return None
            sys.stderr.write(f"> {command}{f'    (device {device})' if device else ''}\n")
            chosen = {"CUDA_VISIBLE_DEVICES": device} if device else {}
            program = [sys.executable, *shlex.split(command)[1:]]
            ended = subprocess.run(program, env=os.environ | chosen)  # nosec B603  # dvc.yaml's own, no shell
            failed = failed or ended.returncode != 0
            return ended.returncode
        finally:
            free.put(device)

    with ThreadPoolExecutor(len(devices)) as threads:
        return [code for code in threads.map(one, commands) if code is not None]


def main() -> None:
    """Runs the chosen stages and stops at the first that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of stages, with commas between; all if left out")
    parser.add_argument("--devices", default="", help="CUDA devices, with commas between, one item on each")
    arguments = parser.parse_args()
    yaml = YAML(typ="safe")
    pipeline, params = yaml.load(Path("dvc.yaml")), yaml.load(Path("params.yaml"))
    wanted = arguments.only.split(",") if arguments.only else list(pipeline["stages"])
    unknown = [name for name in wanted if name not in pipeline["stages"]]
    if unknown:
        sys.exit(f"error: no stage {', '.join(unknown)} in dvc.yaml: it has {', '.join(pipeline['stages'])}")
    for name, items in itertools.groupby(commands(pipeline, params), key=lambda item: item[0]):
        if name in wanted:
            codes = run_at_once([command for _, command in items], arguments.devices.split(","))
            if any(codes):
                code = next(filter(None, codes))
                sys.exit(f"error: {name} ended with code {code}: mend it and run this again")


if __name__ == "__main__":
    main()
