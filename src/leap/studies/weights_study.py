"""Weights of fewer bits together with early exit: int8 (paper, Appendix D), and the paper's fp16.

Each form is what `LeapEncoder` serves: `quantize="int8"`, and float32, float16 and bfloat16 as `model_kwargs`
name them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from leap.core.settings.evaluation import EvaluationSettings, LatencySettings
from leap.core.settings.studies import Weights
from leap.data.pairs import Pairs
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.rules import converged
from leap.latency.timing import PASSES, Forward, Times, cpu_timer, random_batches, speed_up, spread, time_paths
from leap.studies.figures import Row, measure_student


def weights_rows(
    model: LeapEncoder,
    pairs: Pairs,
    rule: ExitRule,
    evaluation: EvaluationSettings,
    latency: LatencySettings,
    forms: Sequence[Weights],
) -> list[Row]:
    """Measure a row each of fp32 and the forms, full and exited: quality, exits, and on a CPU the time.

    `moved` is the share of sentences that exit elsewhere than in fp32, whose neighbours at full depth are every
    row's reference. `speed_up` is of the smallest batch against fp32 at full depth, with its interval;
    `multiplied` is the product of what the form and the exits give alone.
    """
    device = "cpu" if "int8" in forms else str(model.device)  # int8 has kernels for a CPU only
    models = {name: _open(model, name, device) for name in ("fp32", *forms)}
    taken = {
        name: measure_student(each, pairs, evaluation.nn_k, evaluation.batch_size) for name, each in models.items()
    }
    exact = taken["fp32"]
    leave = converged(exact.pooled, rule)
    rows: list[Row] = []
    for name, own in taken.items():
        own = replace(own, reference=exact.reference)
        exits = converged(own.pooled, rule)
        moved = (exits != leave).double().mean().item()
        rows.append({"weights": name, "path": "full", **own.figures(own.full_depth())})
        rows.append({"weights": name, "path": "exit", **own.figures(exits), "moved": moved})
    if device == "cpu":
        _add_times(rows, _times(models, pairs.sentence1, rule, latency, evaluation.seed), evaluation.seed)
    return rows


def _open(model: LeapEncoder, form: str, device: str) -> LeapEncoder:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(form, torch.float32)
    quantize: Literal["int8"] | None = "int8" if form == "int8" else None
    return LeapEncoder(model.folder, device, model_kwargs={"dtype": dtype}, quantize=quantize)


def _add_times(rows: list[Row], times: Mapping[str, Times], seed: int) -> None:
    for row in rows:
        own = times[f"{row['weights']} {row['path']}"]
        row["ms_p50"] = spread(own)["ms_p50"]
        row["speed_up"], row["speed_up_ci95"] = speed_up(times["fp32 full"], own, seed)
    alone = {(row["weights"], row["path"]): row["speed_up"] for row in rows}
    for row in rows:
        if row["path"] == "exit" and row["weights"] != "fp32":
            row["multiplied"] = alone["fp32", "exit"] * alone[row["weights"], "full"]


@torch.inference_mode()
def _times(
    models: Mapping[str, LeapEncoder],
    sentences: Sequence[str],
    rule: ExitRule,
    settings: LatencySettings,
    seed: int,
) -> dict[str, Times]:
    """Time each form and path in turns on the same batches: "int8 exit" to [PASSES, batches], milliseconds."""
    size = min(settings.batch_sizes)
    count = max(1, settings.iterations // PASSES)
    batches = random_batches(models["fp32"].tokenizer(sentences), size, count, seed)
    paths: dict[str, Forward] = {}
    for name, model in models.items():
        paths[f"{name} full"] = partial(layer_forward, model.encoder, layer=model.depth)
        paths[f"{name} exit"] = partial(exit_forward, model.encoder, policy=rule)
    return time_paths(paths, batches, settings.warmup, cpu_timer)
