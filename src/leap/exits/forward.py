"""The forward pass that stops: rows leave at their own layer and the batch shrinks behind them."""

from collections import deque

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.policy import ExitPolicy
from leap.models.batches import Batch
from leap.models.packed_encoder import Encoder


def exit_forward(
    encoder: Encoder, batch: Batch, policy: ExitPolicy, similarities: dict[int, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The rows' vectors where the policy lets them leave; layers after the last exit are not computed.

    Args:
        encoder: the model.
        batch: B rows.
        policy: who leaves; Algorithm 1 is an `ExitRule`.
        similarities: is given cos(p_l, p_{l-k}) of the rows still there at each layer l that is checked,
            where the policy goes by them.

    Returns:
        The pooled vectors at each row's exit layer, [B, D] float32, not normalised, and the exit layers,
        [B] int64, counted from 1.
    """
    depth = len(encoder.layers)
    first, lookback = policy.first_check(), policy.lookback
    by_similarity = None if similarities is None else policy.layer_thresholds(depth)
    vectors = torch.empty(batch.rows, encoder.config.width, device=encoder.words.weight.device)
    exits = torch.full((batch.rows,), depth)
    rows = torch.arange(batch.rows)
    recent: deque[Tensor] = deque(maxlen=lookback)
    states = encoder.embed(batch)
    for number in range(depth + 1):
        if number:
            states = encoder.layers[number - 1](states, batch)
        if number < first - lookback and number < depth:
            continue
        pooled = encoder.pool(states, batch)
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
                    break
                stays = ~leaves
                batch, states = batch.keep(stays, states)
                rows, pooled = rows[stays], pooled[stays]
                recent = deque((earlier[stays] for earlier in recent), maxlen=lookback)
        recent.append(pooled)
    return vectors, exits


def layer_forward(encoder: Encoder, batch: Batch, layer: int) -> Tensor:
    """The pooled vectors of one layer, [B, D] float32; later layers are not computed."""
    states = encoder.embed(batch)
    for block in encoder.layers[:layer]:
        states = block(states, batch)
    return encoder.pool(states, batch)
