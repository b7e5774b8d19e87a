"""The forward pass that stops: rows leave at their own layer and the batch shrinks behind them."""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.policy import ExitPolicy
from leap.models.batches import Batch
from leap.models.walk import NOBODY, Walkable


def exit_forward(
    encoder: Walkable, batch: Batch, policy: ExitPolicy, similarities: dict[int, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the rows' vectors where the policy lets them leave; layers after the last exit are not computed.

    Args:
        encoder: the model, packed or the reference.
        batch: B rows.
        policy: who leaves; Algorithm 1 is an `ExitRule`.
        similarities: receives cos(p_l, p_{l-k}) of the rows still there at each layer l that is checked,
            where the policy goes by them.

    Returns:
        The pooled vectors at each row's exit layer, [B, D] float32, not normalised, and the exit layers,
        [B] int64, counted from 1.
    """
    depth = encoder.config.layers
    first, lookback = policy.first_check(), policy.lookback
    by_similarity = None if similarities is None else policy.layer_thresholds(depth)
    vectors = torch.empty(batch.rows, encoder.config.width, device=encoder.weight.device)
    exits = torch.full((batch.rows,), depth)
    rows = torch.arange(batch.rows)
    recent: deque[Tensor] = deque(maxlen=lookback)

    def visit(number: int, pool: Callable[[], Tensor]) -> Tensor | None:
        nonlocal rows, recent
        if number < first - lookback and number < depth:
            return None
        pooled, stays = pool(), None
        if number == depth:
            vectors[rows] = pooled
        elif number >= first:
            if similarities is not None and by_similarity is not None:
                similarities[number] = F.cosine_similarity(pooled, recent[-by_similarity.patience], dim=-1)
            leaves = policy.leaves(number, pooled, recent).cpu()
            leave = leaves.tolist()  # each question to a tensor takes microseconds, at every check
            if any(leave):
                vectors[rows[leaves]] = pooled[leaves]
                exits[rows[leaves]] = number
                if all(leave):
                    return NOBODY
                stays = ~leaves
                rows, pooled = rows[stays], pooled[stays]
                recent = deque((earlier[stays] for earlier in recent), maxlen=lookback)
        recent.append(pooled)
        return stays

    encoder.walk(batch, visit)
    return vectors, exits


def layer_forward(encoder: Walkable, batch: Batch, layer: int) -> Tensor:
    """Compute the pooled vectors of one layer, [B, D] float32, and no later layer."""
    wanted: list[Tensor] = []

    def visit(number: int, pool: Callable[[], Tensor]) -> Tensor | None:
        if number < layer:
            return None
        wanted.append(pool())
        return NOBODY

    encoder.walk(batch, visit)
    return wanted[0]
