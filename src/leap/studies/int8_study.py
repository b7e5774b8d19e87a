"""Int8 weights together with early exit, on the CPU: does what each saves multiply (paper, Appendix D)?

Both sides are what `LeapEncoder` serves: float32 as it is opened on a CPU, and `quantize="int8"`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from leap.core.settings.evaluation import EvaluationSettings, LatencySettings
from leap.data.pairs import Pairs
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.rules import converged
from leap.latency.timing import PASSES, Forward, Times, cpu_timer, random_batches, speed_up, spread, timed
from leap.studies.figures import Row, measured


def int8_rows(
    model: LeapEncoder,
    pairs: Pairs,
    rule: ExitRule,
    evaluation: EvaluationSettings,
    latency: LatencySettings,
) -> list[Row]:
    """Measure a row each of fp32 and int8, full and exited: quality, and the time of the smallest batch.

    `speed_up` is against fp32 at full depth, with its interval; `multiplied` is the product of what int8 and exits
    give alone.
    """
    plain, small = LeapEncoder(model.folder, "cpu"), LeapEncoder(model.folder, "cpu", quantize="int8")
    rows: list[Row] = []
    exact = measured(plain, pairs, evaluation.nn_k, evaluation.batch_size)
    rounded = measured(small, pairs, evaluation.nn_k, evaluation.batch_size)
    # Both keep, or lose, the neighbours of fp32 at full depth.
    for weights, taken in (("fp32", exact), ("int8", replace(rounded, reference=exact.reference))):
        for path, exits in (("full", taken.full_depth()), ("exit", converged(taken.pooled, rule))):
            rows.append({"weights": weights, "path": path, **taken.figures(exits)})
    times = _times(plain, small, pairs.sentence1, rule, latency, evaluation.seed)
    for row in rows:
        own = times[f"{row['weights']} {row['path']}"]
        row["ms_p50"] = spread(own)["ms_p50"]
        row["speed_up"], row["speed_up_ci95"] = speed_up(times["fp32 full"], own, evaluation.seed)
    alone = {(row["weights"], row["path"]): row["speed_up"] for row in rows}
    rows[-1]["multiplied"] = alone["fp32", "exit"] * alone["int8", "full"]
    return rows


@torch.inference_mode()
def _times(
    plain: LeapEncoder,
    small: LeapEncoder,
    sentences: Sequence[str],
    rule: ExitRule,
    settings: LatencySettings,
    seed: int,
) -> dict[str, Times]:
    """Time each form and path in turns on the same batches: "int8 exit" to [PASSES, batches], milliseconds."""
    size = min(settings.batch_sizes)
    batches = random_batches(plain.tokenizer(sentences), size, max(1, settings.iterations // PASSES), seed)
    paths: dict[str, Forward] = {}
    for weights, model in (("fp32", plain), ("int8", small)):
        paths[f"{weights} full"] = partial(layer_forward, model.encoder, layer=model.depth)
        paths[f"{weights} exit"] = partial(exit_forward, model.encoder, policy=rule)
    return timed(paths, batches, settings.warmup, cpu_timer)
