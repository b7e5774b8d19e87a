"""How a stage starts and ends, with DVC or without.

    python stages/diagnose.py --variant leap --seed 1

A stage reads the settings whole, does its work, and ends with one compact JSON line on stdout.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leap.errors import UserError
from leap.progress import log_to_stderr, logging_redirect_tqdm
from leap.settings import Settings, read_settings
from leap.storage import storage_message

Body = Callable[[Settings, argparse.Namespace], dict[str, Any]]


def run(body: Body, description: str | None, arguments: tuple[str, ...] = ()) -> None:
    """Runs a stage's body and exits: 0 when it is done, 1 with one message on a user's mistake.

    Args:
        body: takes the settings and the parsed arguments, returns what the last line says.
        description: the module's docstring, shown by --help.
        arguments: names of the arguments that say which item of the matrix to run,
            of "variant", "seed", "set" and "study".
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="the settings file")
    for name in arguments:
        parser.add_argument(f"--{name}", required=True, type=_seed if name == "seed" else str)
    parsed = parser.parse_args()
    log_to_stderr()
    try:
        settings = read_settings(parsed.params)
        keep_offline(settings)
        with logging_redirect_tqdm():
            last = body(settings, parsed)
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
    print(json.dumps(last, separators=(",", ":")))


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def keep_offline(settings: Settings) -> None:
    """No library may reach a model hub unless a setting names one."""
    if not settings.names_a_hub():
        os.environ["HF_HUB_OFFLINE"] = "1"
