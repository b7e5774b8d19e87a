"""Compares a fast path with the layer-by-layer computation before it is used: on made rows, on this machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.forward import exit_forward
from leap.exits.plan import Plan, fixed_plan
from leap.exits.precision import TOLERANCE, near_threshold
from leap.exits.rules import ExitRule, consecutive_similarity
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder

# The least cosine of vectors that left at the same layer.
LEAST_COSINE = {torch.float16: 0.9999, torch.bfloat16: 0.999}
LENGTHS = (1, 3, 5, 9, 12, 14, 14, 14, 16, 17, 25, 33, 48, 64, 90, 128, 200)

Run = Callable[[Batch, Plan], tuple[Tensor, Tensor]]


def made_batch(encoder: Encoder, longest: int) -> Batch:
    """Make rows of tokens of different lengths, at most `longest`, on the encoder's device."""
    config = encoder.config
    lengths = sorted(min(length, longest, config.max_tokens) for length in LENGTHS)
    rows = [
        [(31 * row + 17 * place * place + 7) % config.vocabulary for place in range(length)]
        for row, length in enumerate(lengths)
    ]
    return pack(rows).to(encoder.words.weight.device)


def disagreement(
    run: Run, encoder: Encoder, batch: Batch, times: int = 1, heads: ExitHeads | None = None
) -> str | None:
    """Describe what a path computes otherwise than layer by layer; None where it agrees.

    Compared are full depth, exits that are forced in the middle, and exits by a threshold that about half of
    the rows reach there; of a model of one layer only full depth. A row whose cosine lies within twice half
    precision's tolerance of the threshold may leave elsewhere (each side moves it once). Each comparison is made
    `times` times: a graph is captured the second time. `heads` are those that the path maps its vectors by; here
    the CPU does.
    """
    depth, dtype = encoder.config.layers, encoder.words.weight.dtype
    pooled = encoder(batch)
    middle = (depth + 1) // 2
    expected = [Expected("full depth", fixed_plan(depth, depth), pooled[-1], torch.full((batch.rows,), depth))]
    if 2 <= middle < depth:
        forced = [torch.inf] * depth
        forced[middle - 1] = -1.0
        plan = Plan(tuple(forced), 1, depth)
        expected.append(Expected("forced exits", plan, pooled[middle], torch.full((batch.rows,), middle)))
        rule = ExitRule(consecutive_similarity(pooled, 1)[middle - 1].median().item(), middle)
        limits = rule.layer_thresholds(depth)
        plan = Plan(tuple(limits.thresholds.tolist()), limits.patience, depth)
        near = near_threshold(pooled, rule, 2 * TOLERANCE[dtype]).cpu()
        expected.append(Expected("exits by threshold", plan, *exit_forward(encoder, batch, rule), near))
    if heads is not None:
        by_cpu = heads.to(torch.device("cpu"))
        expected = [replace(case, vectors=by_cpu.at_exits(case.vectors.cpu(), case.exits)) for case in expected]
    for case in expected:
        for _ in range(times):
            reason = case.difference(*run(batch, case.plan), LEAST_COSINE[dtype])
            if reason:
                return f"{case.name}: {reason}"
    return None


@dataclass(frozen=True)
class Expected:
    """The result that a path must give for a plan; `near` are the rows that may leave elsewhere."""

    name: str
    plan: Plan
    vectors: Tensor
    exits: Tensor
    near: Tensor | None = None

    def difference(self, vectors: Tensor, exits: Tensor, least: float) -> str | None:
        layers = exits.cpu()
        same = layers == self.exits
        allowed = same if self.near is None else same | self.near
        if not allowed.all():
            row = int((~allowed).nonzero()[0])
            return f"row {row} of {len(same)} left at layer {int(layers[row])}, not {int(self.exits[row])}"
        computed, wanted = (either.double().cpu()[same] for either in (vectors, self.vectors))
        worst = F.cosine_similarity(computed, wanted, dim=-1).min().item() if same.any() else 1.0
        # Not the other way round: what is not a number does not agree.
        return None if worst >= least else f"cosine {worst:.5f} to the vectors, at least {least} was expected"
