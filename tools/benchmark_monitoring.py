"""What watching costs: time of encoding with and without a monitor, in turns.

python tools/benchmark_monitoring.py --model models/leap-1 --sentences data/sentences.parquet
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import pandas as pd

from leap.core.environment import environment
from leap.exits import LeapEncoder
from leap.serve import Monitor


def main() -> None:
    """Measures and prints one JSON line: median milliseconds a call, and the overhead of each rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, default=Path("data/sentences.parquet"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    model = LeapEncoder(arguments.model, arguments.device)
    texts = pd.read_parquet(arguments.sentences)["sentence"].tolist()
    rows = [row for batch in (1, 32) for row in overheads(model, texts[: batch * arguments.rounds], batch)]
    result = {"rows": rows, "environment": environment(str(model.device))}
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


def overheads(model: LeapEncoder, texts: list[str], batch: int) -> list[dict[str, float]]:
    """Each way to watch, on the same batches, in turns, so that a slow moment hits all alike."""
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            rate: None if rate < 0 else Monitor(model, Path(folder), shadow_rate=rate)
            for rate in (-1.0, 0.0, 0.01, 0.1)
        }
        times: dict[float, list[float]] = {rate: [] for rate in ways}
        for start in range(0, len(texts), batch):
            for rate, monitor in ways.items():
                model.monitor = monitor
                begun = time.perf_counter()
                model.encode(texts[start : start + batch], batch_size=batch)
                times[rate].append(1000 * (time.perf_counter() - begun))
    model.monitor = None
    plain = times.pop(-1.0)
    return [
        {
            "batch": batch,
            "shadow_rate": rate,
            "ms_p50": median(found),
            "ms_p50_plain": median(plain),
            # The mean: at a rate of 1 % the median does not see the shadow at all.
            "overhead": sum(found) / sum(plain) - 1,
        }
        for rate, found in times.items()
    ]


if __name__ == "__main__":
    main()
