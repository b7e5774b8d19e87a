"""Encoding throughput on this machine: LeapEncoder next to sentence-transformers, in the same run.

    make bench                                   # after make demo, whose data and leap-1 it uses
    python tools/benchmark_encoding.py --device cuda

With exits and at full depth, against sentence-transformers at full depth. The last line is one JSON object.
On a CPU read the ratios; absolute figures are this machine's.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.progress import log_to_stderr
from leap.data.sentence_file import read_sentences
from leap.exits import LeapEncoder
from leap.models.device import resolve_device


def encoding(device: torch.device) -> dict[str, Any]:
    """Sentences a second of the trained `leap`, with exits, without, and in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    folder = Path("models/leap-1")
    sentences = read_sentences(Path("data/sentences.parquet"))[:2000]
    ours, theirs = LeapEncoder(folder, str(device)), SentenceTransformer(str(folder), device=str(device))
    ways: dict[str, Callable[[], Any]] = {
        "exit": lambda: ours.encode(sentences),
        "full": lambda: ours.encode(sentences, strategy="full"),
        "sentence_transformers": lambda: theirs.encode(sentences),
    }
    rates: dict[str, float] = {}
    for name, way in ways.items():
        way()
        started = synchronised(device)
        way()
        rates[name] = round(len(sentences) / (synchronised(device) - started), 1)
    return rates | {"speed_up_over_sentence_transformers": rates["exit"] / rates["sentence_transformers"]}


def synchronised(device: torch.device) -> float:
    """The time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        device = resolve_device(arguments.device)
        result = {
            "environment": environment(str(device)),
            "encoding": encoding(device),
        }
    except UserError as error:
        sys.exit(f"error: {error}\nthe benchmark uses the results of `make demo`")
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
