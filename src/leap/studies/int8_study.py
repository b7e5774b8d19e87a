"""Int8 weights together with early exit, on the CPU: does what each saves multiply (paper, Appendix D)?

Dynamic quantisation of the linear layers: int8 weights beforehand, int8 activations by range at run time.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from leap.core.settings.evaluation import EvaluationSettings, LatencySettings
from leap.data.pairs import Pairs
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.rules import converged
from leap.latency.timing import Forward, cpu_timer, random_batches, timed
from leap.studies.figures import Row, measured

PASSES = 5


def quantised(model: LeapEncoder) -> LeapEncoder:
    """The same model on the CPU with its linear layers in int8."""
    other = copy.copy(model)
    other.device = torch.device("cpu")
    with warnings.catch_warnings():
        # PyTorch means to move this to torchao; the pinned version has it, and torchao is one more package.
        warnings.simplefilter("ignore")
        other.encoder = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            copy.deepcopy(model.encoder).cpu().float(), {nn.Linear}, dtype=torch.qint8
        )
    return other


def int8_rows(
    model: LeapEncoder,
    pairs: Pairs,
    rule: ExitRule,
    evaluation: EvaluationSettings,
    latency: LatencySettings,
) -> list[Row]:
    """A row each of fp32 and int8, full and exited: quality, and the time of the smallest batch.

    `speed_up` is against fp32 at full depth; `multiplied` is the product of what int8 and exits give alone.
    """
    plain, small = quantised_pair(model)
    rows: list[Row] = []
    exact = measured(plain, pairs, evaluation.nn_k, evaluation.batch_size)
    rounded = measured(small, pairs, evaluation.nn_k, evaluation.batch_size)
    # Both keep, or lose, the neighbours of fp32 at full depth.
    for weights, taken in (("fp32", exact), ("int8", replace(rounded, reference=exact.reference))):
        for path, exits in (("full", taken.full_depth()), ("exit", converged(taken.pooled, rule))):
            rows.append({"weights": weights, "path": path, **taken.figures(exits)})
    times = _times(plain, small, pairs.sentence1, rule, latency, evaluation.seed)
    for row in rows:
        row["ms_p50"] = times[row["weights"], row["path"]]
        row["speed_up"] = times["fp32", "full"] / row["ms_p50"]
    alone = {(row["weights"], row["path"]): row["speed_up"] for row in rows}
    rows[-1]["multiplied"] = alone["fp32", "exit"] * alone["int8", "full"]
    return rows


def quantised_pair(model: LeapEncoder) -> tuple[LeapEncoder, LeapEncoder]:
    """The model in fp32 and in int8, both on the CPU."""
    plain = copy.copy(model)
    plain.device = torch.device("cpu")
    plain.encoder = copy.deepcopy(model.encoder).cpu().float()
    return plain, quantised(plain)


@torch.inference_mode()
def _times(
    plain: LeapEncoder,
    small: LeapEncoder,
    sentences: Sequence[str],
    rule: ExitRule,
    settings: LatencySettings,
    seed: int,
) -> dict[tuple[str, str], float]:
    """Median milliseconds of each form and path; all take turns on the same batches."""
    size = min(settings.batch_sizes)
    batches = random_batches(plain.tokenizer(sentences), size, max(1, settings.iterations // PASSES), seed)
    paths: dict[str, Forward] = {}
    for weights, model in (("fp32", plain), ("int8", small)):
        paths[f"{weights} full"] = partial(layer_forward, model.encoder, layer=model.depth)
        paths[f"{weights} exit"] = partial(exit_forward, model.encoder, policy=rule)
    found = timed(paths, batches, settings.warmup, cpu_timer)
    return {
        (weights, path): float(np.median(found[f"{weights} {path}"]))
        for weights in ("fp32", "int8")
        for path in ("full", "exit")
    }
