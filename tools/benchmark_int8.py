"""What int8 saves on this CPU: `quantize="int8"` against what it replaces, in the same rounds.

    python tools/benchmark_int8.py --threads 2

Random encoders of 384 and 768 columns, whose times are those of trained ones, on batches of 14 tokens a row. It
earns its place where it is at least 1.2 times faster at one of both widths on two cores. The last line is one JSON
object.
"""

import argparse
import copy
import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch

from leap.core.environment import environment
from leap.exits.forward import layer_forward
from leap.latency.timing import Forward, cpu_timer, random_batches, speed_up, spread, time_paths
from leap.models.int8 import to_int8
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.models.small_batches import pack_for_small_batches

ENOUGH = 1.2
TOKENS = 14
VOCABULARY = 1000


def measure(width: int, layers: int, batch: int, calls: int) -> dict[str, Any]:
    """Time one width and batch size; both sides take turns."""
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=layers,
        width=width,
        heads=width // 32,
        intermediate=4 * width,
        vocabulary=VOCABULARY,
        positions=64,
    )
    plain = Encoder(config).eval()
    small = copy.deepcopy(plain)
    pack_for_small_batches(plain)
    to_int8(small)
    ids = np.random.default_rng(0).integers(5, VOCABULARY, size=(200, TOKENS)).tolist()
    batches = random_batches(ids, batch, max(1, calls // 5), seed=1)
    forwards: dict[str, Forward] = {
        name: partial(layer_forward, encoder, layer=layers) for name, encoder in (("fp32", plain), ("int8", small))
    }
    times = time_paths(forwards, batches, 10, cpu_timer)
    gain, interval = speed_up(times["fp32"], times["int8"], seed=1)
    medians = {f"{name}_ms": spread(found)["ms_p50"] for name, found in times.items()}
    return {"width": width, "layers": layers, "batch": batch, **medians, "speed_up": gain, "ci95": interval}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = [measure(width, 12, batch, given.calls) for width in (384, 768) for batch in (1, 8, 32)]
    result = {"environment": environment("cpu"), "threads": given.threads, "rows": rows}
    result["earns_its_place"] = any(row["speed_up"] >= ENOUGH for row in rows)
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
