"""The start and the end of a stage, with DVC or without.

    python stages/diagnose.py --variant leap --seed 1

A stage reads the settings whole, does its work, and ends with one compact JSON line on stdout.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.progress import log_to_stderr, logging_redirect_tqdm
from leap.core.project import Checkpoint, Project
from leap.core.settings import Settings, read_settings
from leap.core.storage import storage_message


@dataclass(frozen=True)
class Run:
    """One run of a stage: the settings, the project, and the item of the stage's matrix."""

    settings: Settings
    project: Project = field(default_factory=Project)
    variant: str = ""
    seed: int = 0
    set: str = ""
    study: str = ""

    @property
    def checkpoint(self) -> Checkpoint:
        return self.project.checkpoint(self.variant, self.seed)


Body = Callable[[Run], dict[str, Any]]


def stage(*arguments: str) -> Callable[[Body], Body]:
    """Make a function the body of a stage, which runs when its file is run as a program.

    The body takes a `Run` and returns what the last line of the output says. The program exits with 0 when it
    is done and with 1 and one message on a user's mistake. `arguments` are the command line's options that say
    which item of the matrix to run, of "variant", "seed", "set" and "study".
    """

    def decorate(body: Body) -> Body:
        if body.__module__ == "__main__":
            run_program(body, arguments)
        return body

    return decorate


def run_program(body: Body, arguments: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="the settings file")
    for name in arguments:
        parser.add_argument(f"--{name}", required=True, type=_seed if name == "seed" else str)
    item = vars(parser.parse_args())
    log_to_stderr()
    try:
        settings = read_settings(item.pop("params"))
        keep_offline(settings)
        with logging_redirect_tqdm():
            last = body(Run(settings, **item))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        message = storage_message(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped: run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    print(json.dumps({"stage": body.__name__, **item, **last}, separators=(",", ":")))


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def keep_offline(settings: Settings) -> None:
    """Keep every library away from a model hub unless a setting names one."""
    if not settings.names_a_hub():
        os.environ["HF_HUB_OFFLINE"] = "1"
