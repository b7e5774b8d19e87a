"""Times exit heads: a query at every layer, with the head and without it, in turns.

    python tools/benchmark_heads.py models/elastic-1 --sentences data/sentences.parquet
    python tools/benchmark_heads.py models/elastic-1 --device cuda --precision fp16

The last line is one JSON object. On a CPU read the ratios; absolute figures are this machine's.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.grid import Grid
from leap.core.progress import log_to_stderr
from leap.exits import LeapEncoder
from leap.latency import timing_cuda
from leap.latency.timing import cpu_timer, frontier_paths, random_batches, speed_up, time_paths

SEED = 17
SENTENCES = 10_000
MEASURED = ("ms_without", "ms_with", "share_of_a_layer", "of_full_depth")
COLUMNS = ("batch", "tokens", "layer", *MEASURED)


@torch.inference_mode()
def head_costs(model: LeapEncoder, sentences: list[str], size: int, rounds: int) -> list[dict[str, Any]]:
    """Time every layer's exit on the same batches of `size` sentences, through its head and without.

    Raises:
        UserError: the model has no exit heads.
    """
    if model.heads is None:
        raise UserError(f"{model.folder} has no exit heads: name a model that was trained with `loss.heads`")
    drawn = random_batches(model.tokenizer(sentences), size, rounds, SEED)
    batches = [batch.to(model.device) for batch in drawn]
    with_heads = frontier_paths(model, batches, model.rule, [], None)
    heads, model.heads = model.heads, None
    plain = frontier_paths(model, batches, model.rule, [], None)
    model.heads = heads
    calls = {name: path.forward for name, path in plain.items()}
    calls |= {f"{name} head": path.forward for name, path in with_heads.items()}
    on_card = model.device.type == "cuda"
    timer = timing_cuda.burst_timer() if on_card else cpu_timer
    times = time_paths(calls, batches, 2 * len(batches), timer)
    depth = model.depth
    layer_ms = float(np.median(times[f"layer_{depth}"])) / depth
    rows = []
    for layer in range(1, depth):
        name = f"layer_{layer}"
        ratio, interval = speed_up(times[f"{name} head"], times[name], SEED)
        without = float(np.median(times[name]))
        rows.append(
            {
                "batch": size,
                "tokens": sum(len(batch.ids) for batch in batches) / (size * len(batches)),
                "layer": layer,
                "ms_without": without,
                "ms_with": float(np.median(times[f"{name} head"])),
                "share_of_a_layer": (ratio - 1) * without / layer_ms,
                "share_of_a_layer_ci95": [(bound - 1) * without / layer_ms for bound in interval],
                "of_full_depth": float(np.median(times[f"{name} head"])) / (layer_ms * depth),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sentences", type=Path, default=Path("data/sentences.parquet"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="fp32")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20, help="batches, each timed five times a way")
    arguments = parser.parse_args()
    log_to_stderr()
    types = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    try:
        model = LeapEncoder(arguments.model, arguments.device, model_kwargs={"dtype": types[arguments.precision]})
        sentences = pd.read_parquet(arguments.sentences)["sentence"].tolist()[:SENTENCES]
        sizes, rounds = arguments.batch_sizes, arguments.rounds
        rows = [row for size in sizes for row in head_costs(model, sentences, size, rounds)]
    except UserError as error:
        sys.exit(f"error: {error}")
    shown = [[f"{row[name]:.3f}" if name in MEASURED else f"{row[name]:.0f}" for name in COLUMNS] for row in rows]
    sys.stdout.write(Grid(COLUMNS, shown).text() + "\n")
    result = {
        "model": arguments.model,
        "precision": arguments.precision,
        "rows": rows,
        "environment": environment(str(model.device)),
    }
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
