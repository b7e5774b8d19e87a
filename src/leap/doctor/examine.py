"""One model, examined: what `leap doctor` prints, draws, and gives as JSON."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.settings.evaluation import EvaluationSettings, SweepSettings
from leap.doctor.doctor_sentences import Sample
from leap.doctor.symptoms import costly_checks, false_convergence, flat_curve, zero_exits
from leap.evaluate.encode import layer_vectors, token_counts
from leap.evaluate.examination import examine
from leap.evaluate.shipped_settings import BATCH, shipped_settings
from leap.evidence.bounds import ENOUGH_NEIGHBOURS, checklist
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.rules import at_layers, converged
from leap.latency.timing import UNREACHABLE, cpu_timer, speed_up, time_paths
from leap.latency.timing_cuda import single_timer
from leap.models.batches import pack
from leap.models.folder import hash_weights

# So many sentences are timed, each a few times.
TIMED = 10
# The verdict of a diagnosis, and what it becomes where leap.json has queries leave at a layer of their own.
NEVER, EARLY_QUERIES = "never exits", "queries leave early"


def examine_model(name: str, model: LeapEncoder, chosen: Sample, rule: ExitRule) -> dict[str, Any]:
    """Examine a model by a rule on chosen sentences; `name` is what the user calls it.

    Raises:
        UserError: the rule does not fit the model, or its vectors are not finite.
    """
    try:
        rule.check_depth(model.depth)
    except ValueError as error:
        raise UserError(f"{name} cannot follow this exit rule: {error}") from None
    started = time.perf_counter()
    pooled = layer_vectors(model, chosen.sentences, BATCH)
    tokens = token_counts(model, chosen.sentences)
    returned = model.returned(pooled)
    diagnosis = examine(pooled, tokens, None, rule, settings_of(model.depth), returned=returned)
    exits = converged(pooled, rule)
    similarity = F.cosine_similarity(at_layers(returned, exits), pooled[-1], dim=-1).double()
    speed = monitoring_overhead(model, chosen.sentences, rule)
    rate = diagnosis["exit"]["rate"]
    verdict, words = diagnosis["verdict"], advice(diagnosis, model.depth)
    query_layer = model.input_rules.get("query", {}).get("layer", model.depth)
    if query_layer < model.depth:
        queries = query_advice(query_layer, diagnosis, model.depth)
        if verdict == NEVER:
            verdict = EARLY_QUERIES
            words = f"{queries} Other sentences compute all layers, so an index stays as it is."
        else:
            words = f"{words} {queries}"
    symptoms = [
        flat_curve(diagnosis["layers"], rule.min_layer),
        zero_exits(rate, rule.threshold),
        costly_checks(speed["overhead"], rate),
        false_convergence(similarity.numpy(), (exits < model.depth).double().numpy()),
    ]
    return {
        "model": name,
        "weights": hash_weights(model.folder),
        "depth": model.depth,
        "width": pooled.shape[2],
        "sentences": {
            "source": chosen.source,
            "n": len(chosen.sentences),
            "mean_tokens": tokens.double().mean().item(),
        },
        "exit_rule": {
            "threshold": rule.threshold,
            "min_layer": rule.min_layer,
            "patience": rule.patience,
        },
        "verdict": verdict,
        "advice": words,
        "symptoms": [vars(symptom) for symptom in symptoms],
        "checklist": checklist(diagnosis["exit"]),
        "diagnosis": diagnosis,
        "latency": speed,
        "environment": environment(str(model.device)),
        "seconds": time.perf_counter() - started,
    }


@torch.inference_mode()
def monitoring_overhead(model: LeapEncoder, sentences: Sequence[str], rule: ExitRule) -> dict[str, Any]:
    """Time full depth with and without checks, one sentence at a time, in the same rounds.

    Returns:
        `ms_full` and `ms_monitored`, medians, and `overhead`, the ratio of the two less 1, with its 95 % interval.
    """
    batches = [pack([row]).to(model.device) for row in model.tokenizer(list(sentences[:TIMED]))]
    monitor = ExitRule(UNREACHABLE, rule.min_layer, rule.patience)
    paths = {
        "full": lambda batch: layer_forward(model.encoder, batch, model.depth),
        "monitored": lambda batch: exit_forward(model.encoder, batch, monitor),
    }
    times = time_paths(paths, batches, 3, single_timer if model.device.type == "cuda" else cpu_timer)
    cost, (low, high) = speed_up(times["monitored"], times["full"], seed=17)
    return {
        **{f"ms_{name}": float(np.median(milliseconds)) for name, milliseconds in times.items()},
        "overhead": cost - 1,
        "overhead_ci95": [low - 1, high - 1],
    }


def default_rule(model: LeapEncoder) -> ExitRule:
    """Return the rule of the model's own leap.json; else the paper's theta, with l_min at half the depth.

    The paper's l_min is 6 of 12 layers.
    """
    if (model.folder / "leap.json").is_file():
        return model.rule
    return ExitRule(threshold=0.95, min_layer=max(1, model.depth // 2), patience=1)


def settings_of(depth: int) -> EvaluationSettings:
    """Return the shipped settings with a sweep over every l_min."""
    thresholds = [0.90, 0.92, 0.93, 0.95, 0.97, 0.99]
    sweep = SweepSettings(thresholds=thresholds, min_layers=list(range(2, max(depth, 3))), patience=[1])
    return shipped_settings().model_copy(update={"sweep": sweep})


def advice(diagnosis: dict[str, Any], depth: int) -> str:
    """Put the verdict into plain words, with the figures that it rests on and what to do."""
    exits, best = diagnosis["exit"], diagnosis["recommended"]
    layers = f"{exits['expected_layers']:.1f} of {depth} layers"
    if diagnosis["verdict"] == NEVER:
        words = (
            f"Early exit saves next to nothing on this model: {exits['rate']:.1%} of the sentences leave "
            f"before the last layer, {layers} are computed on average. Run it at full depth."
        )
    elif diagnosis["verdict"] == "exits and is near":
        words = (
            f"Early exit works on this model: {exits['rate']:.1%} of the sentences leave early, {layers} are "
            f"computed on average, and the vectors stay near full depth (cosine {exits['similarity']:.3f})."
        )
        if exits["nn_at_10"] < ENOUGH_NEIGHBOURS:
            words += (
                f" But only {exits['nn_at_10']:.0%} of the nearest neighbours stay the same: measure your "
                "retrieval before you rely on it."
            )
    else:
        words = (
            f"Do not switch early exit on: {exits['rate']:.1%} of the sentences leave early because their "
            f"vectors stand still, but far from where they would end (cosine {exits['similarity']:.3f} to "
            f"full depth, {exits['nn_at_10']:.0%} of the nearest neighbours stay). The exit rate alone looks "
            "like a success."
        )
    return f"{words} {_way_out(diagnosis['verdict'], best)}"


def query_advice(layer: int, diagnosis: dict[str, Any], depth: int) -> str:
    """Put into plain words what a model gives whose leap.json lets queries leave at a layer."""
    there = diagnosis["layers"][layer - 1]
    return (
        f"Queries (`encode_query`) leave at layer {layer} of {depth}, as the model's leap.json says: from there a "
        f"vector of these sentences has cosine {there['similarity_to_final']:.3f} to full depth and keeps "
        f"{there['nn_at_10']:.0%} of its nearest neighbours. "
        "`leap calibrate MODEL --queries FILE --documents FILE` shows on your own text what may be relied on."
    )


def _way_out(verdict: str, best: dict[str, Any] | None) -> str:
    if best is None:
        return (
            "No threshold or first layer that was tried passes the deployment checklist: the model has to be "
            "trained for early exit (LEAP)."
        )
    rule = f"theta {best['threshold']:g} from layer {best['min_layer']} on"
    found = (
        f"{best['expected_layers']:.1f} layers, cosine {best['similarity']:.3f}, {best['nn_at_10']:.0%} of "
        "the neighbours stay"
    )
    if verdict == "exits and is near":
        return f"The fewest layers that pass the checklist on these sentences: {rule} ({found})."
    return f"With {rule} it would pass the checklist on these sentences: {found}."
