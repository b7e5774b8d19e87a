"""Runs the stages of dvc.yaml in their order without DVC, where only PyTorch and the library are there.

    python scripts/run_stages.py                                  # all
    python scripts/run_stages.py --only extract,cache_teacher,train,diagnose

The commands are dvc.yaml's own, a matrix item each, so nothing here says what a stage does. A student that is
trained already from the same settings, data and code is kept; an interrupted run goes on where it was.
"""

import argparse
import itertools
import shlex
import subprocess
import sys
from collections.abc import Iterator
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


def main() -> None:
    """Runs the chosen stages and stops at the first that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of stages, with commas between; all if left out")
    only = parser.parse_args().only
    yaml = YAML(typ="safe")
    pipeline, params = yaml.load(Path("dvc.yaml")), yaml.load(Path("params.yaml"))
    wanted = only.split(",") if only else list(pipeline["stages"])
    unknown = [name for name in wanted if name not in pipeline["stages"]]
    if unknown:
        sys.exit(f"error: no stage {', '.join(unknown)} in dvc.yaml: it has {', '.join(pipeline['stages'])}")
    for name, command in commands(pipeline, params):
        if name in wanted:
            sys.stderr.write(f"> {command}\n")
            ended = subprocess.run([sys.executable, *shlex.split(command)[1:]])
            if ended.returncode:
                sys.exit(f"error: {name} ended with code {ended.returncode}: mend it and run this again")


if __name__ == "__main__":
    main()
