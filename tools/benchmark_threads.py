"""What waiting threads cost: a training step and one sentence's encoding, with OpenMP spinning or sleeping.

    python tools/benchmark_threads.py                          # this machine as it is
    python tools/benchmark_threads.py --spinners 2             # with two busy processes next to it
    python tools/benchmark_threads.py --output results/DATE-MACHINE/threads.json

A parallel loop of OpenMP ends when its slowest thread does. By default the others spin meanwhile, which is quick
on an idle machine, and on a busy one takes the core from the thread that they wait for. `leap` sets
OMP_WAIT_POLICY=passive before it imports torch (src/leap/__init__.py). Each way runs in a process of its own, for
OpenMP reads them once; the ways take turns, and medians over the rounds are shown. Ends with one JSON line.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.files import write_json

WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
    # What libgomp, the OpenMP of torch's Linux wheels, does where nothing is said: some milliseconds of spinning.
    "all threads, spinning": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "300000"},
    "all threads, passive": {"OMP_WAIT_POLICY": "passive"},
}
SPIN = "while True: pass"


def measure(steps: int) -> dict[str, float]:
    """Time training steps of a small student and single sentences of a MiniLM's shape, in this process.

    Args:
        steps: of each; the first fifth is not counted.

    Returns:
        Median milliseconds a training step and a sentence.
    """
    import torch

    from leap.models.batches import pack
    from leap.models.packed_encoder import Encoder, EncoderConfig

    def milliseconds(call: Any) -> float:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times[steps // 5 :])

    torch.manual_seed(0)
    student = Encoder(EncoderConfig(6, 128, 4, 512, vocabulary=1000, positions=128))
    optimiser = torch.optim.AdamW(student.parameters())
    rows = pack([[7 + row] * (8 + 4 * (row // 16)) for row in range(64)])
    served = Encoder(EncoderConfig(6, 384, 12, 1536, vocabulary=1000, positions=128)).eval()
    sentence = pack([[5] * 14])

    def train() -> None:
        optimiser.zero_grad()
        student(rows).square().mean().backward()
        optimiser.step()

    def encode() -> None:
        with torch.inference_mode():
            served(sentence)

    return {"training_ms": milliseconds(train), "sentence_ms": milliseconds(encode)}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy in the background."""
    started = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]  # nosec B603  # this program itself, no shell
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_way(variables: dict[str, str], steps: int) -> dict[str, float]:
    """Measure in a process with these variables."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [sys.executable, __file__, "--worker", "--steps", str(steps)]
    done = subprocess.run(command, env=others | variables, check=True, capture_output=True, text=True)  # nosec B603  # this program itself, no shell
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Measure every way in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--spinners", type=int, default=0, help="busy processes next to the measured one")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        sys.stdout.write(json.dumps(measure(chosen.steps)) + "\n")
        return
    load = os.getloadavg()[0]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with busy(chosen.spinners):
        for _ in range(chosen.rounds):
            for name, variables in WAYS.items():
                rounds[name].append(run_way(variables, chosen.steps))
    ways = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in rounds.items()
    }
    for name, figures in ways.items():
        sys.stdout.write(
            f"{name:24} training step {figures['training_ms']:8.1f} ms"
            f"   sentence {figures['sentence_ms']:6.2f} ms\n"
        )
    spinning, passive = ways["all threads, spinning"], ways["all threads, passive"]
    facts = {
        "spinning_to_passive": {key: spinning[key] / passive[key] for key in spinning},
        "load_before": load,
        "spinners": chosen.spinners,
        "ways": ways,
        "environment": environment("cpu"),
    }
    if chosen.output:
        write_json(chosen.output, facts)
    shown = {key: facts[key] for key in ("spinning_to_passive", "load_before", "spinners")}
    sys.stdout.write(json.dumps(shown, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
