"""Random encoders and batches for the tests of the CUDA paths."""

import math
import random

import torch
from torch import Tensor

from leap.exits.plan import Plan
from leap.exits.precision import near_threshold
from leap.exits.rules import ExitRule, consecutive_similarity
from leap.models.batches import Batch, pack
from leap.models.packed_encoder import Encoder, EncoderConfig

VOCABULARY = 1000
# Of a cosine in half precision, path against path; and the least cosine of vectors that left together.
KINDS = {"float16": (torch.float16, 2e-3, 0.9999), "bfloat16": (torch.bfloat16, 8e-3, 0.999)}
# More rows near the threshold than this would make a comparison of exits empty.
MOST_NEAR = 0.85


def random_encoder(
    layers: int, width: int, heads: int, device: str = "cuda", relative_buckets: int = 0
) -> Encoder:
    """The same weights at every call, float32; a bias by relative position is strong enough to be missed."""
    torch.manual_seed(0)
    config = EncoderConfig(
        *(layers, width, heads, 4 * width),
        vocabulary=VOCABULARY,
        positions=256,
        relative_buckets=relative_buckets,
    )
    encoder = Encoder(config).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.05)
        else:
            parameter.data += torch.randn_like(parameter) * 0.05
    for name, parameter in encoder.named_parameters():
        if name.endswith("relative.table.weight"):
            parameter.data.normal_(0, 1)
    return encoder.to(device)


def batch_of(lengths: list[int], seed: int = 0, device: str = "cuda") -> Batch:
    """Random rows of these lengths, each of a few words only, so that their similarities are far apart."""
    numbers = random.Random(seed)
    rows = []
    for length in sorted(lengths):
        words = [numbers.randrange(VOCABULARY) for _ in range(numbers.randint(1, 4))]
        rows.append([numbers.choice(words) for _ in range(length)])
    return pack(rows).to(torch.device(device))


def spread_rule(encoder: Encoder, batch: Batch, layer: int, patience: int = 1) -> ExitRule:
    """A rule that half of the rows reach at `layer`, the first that is tested."""
    scores = consecutive_similarity(encoder(batch), patience)[layer - 1]
    return ExitRule(scores.median().item(), layer, patience)


def plan_for(rule: ExitRule, depth: int) -> Plan:
    """The rule's plan."""
    result = rule.layer_thresholds(depth)
    return Plan(tuple(result.thresholds.tolist()), result.patience, depth)


def forced_plan(layer: int, depth: int, threshold: float = -1.0) -> Plan:
    """Every row reaches the threshold at one layer, the only one that is tested."""
    limits = [math.inf] * depth
    limits[layer - 1] = threshold
    return Plan(tuple(limits), 1, depth)


def cosine(one: Tensor, other: Tensor) -> float:
    """The least of the rows'."""
    if not len(one):
        return 1.0
    return torch.cosine_similarity(one.double().cpu(), other.double().cpu(), dim=-1).min().item()


def assert_same_exits(
    found: tuple[Tensor, Tensor],
    wanted: tuple[Tensor, Tensor],
    pooled: Tensor,
    rule: ExitRule,
    tolerance: float,
    least: float,
) -> None:
    """Rows leave where they should but for those near the threshold, with the same vectors."""
    near = near_threshold(pooled, rule, tolerance).cpu()
    same = found[1].cpu() == wanted[1].cpu()
    assert (same | near).all(), (found[1].tolist(), wanted[1].tolist())
    assert cosine(found[0].cpu()[same], wanted[0].cpu()[same]) >= least
    assert near.double().mean() <= MOST_NEAR
