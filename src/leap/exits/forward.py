"""The forward pass that stops: rows leave at their own layer and the batch shrinks behind them."""

from collections import deque

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.rules import ExitRule
from leap.model.batches import Batch
from leap.model.encoder import Encoder, mean_pool


def exit_forward(
    encoder: Encoder, batch: Batch, rule: ExitRule, similarities: dict[int, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 on a batch; layers after the last exit are not computed.

    Args:
        encoder: the model.
        batch: B rows.
        rule: theta, l_min and k.
        similarities: is given cos(p_l, p_{l-k}) of the rows still there at each layer l that is checked.

    Returns:
        The pooled vectors at each row's exit layer, [B, D] float32, not normalised, and the exit layers,
        [B] int64, counted from 1.
    """
    depth = len(encoder.layers)
    vectors = torch.empty(batch.rows, encoder.config.width, device=encoder.words.weight.device)
    exits = torch.full((batch.rows,), depth)
    rows = torch.arange(batch.rows)
    states = encoder.embed(batch)
    recent: deque[Tensor] = deque(maxlen=rule.patience)
    for number, layer in enumerate(encoder.layers, start=1):
        states = layer(states, batch)
        if number < rule.first_check() - rule.patience:
            continue
        pooled = mean_pool(states, batch)
        if number == depth:
            vectors[rows] = pooled
        elif number >= rule.first_check():
            similarity = F.cosine_similarity(pooled, recent[0], dim=-1)
            if similarities is not None:
                similarities[number] = similarity
            leaves = (similarity >= rule.threshold).cpu()
            if leaves.any():
                vectors[rows[leaves]] = pooled[leaves]
                exits[rows[leaves]] = number
                if leaves.all():
                    break
                stays = ~leaves
                batch, states = batch.keep(stays.tolist(), states)
                rows, pooled = rows[stays], pooled[stays]
                recent = deque((earlier[stays] for earlier in recent), maxlen=rule.patience)
        recent.append(pooled)
    return vectors, exits


def layer_forward(encoder: Encoder, batch: Batch, layer: int) -> Tensor:
    """The pooled vectors of one layer, [B, D] float32; later layers are not computed."""
    states = encoder.embed(batch)
    for block in encoder.layers[:layer]:
        states = block(states, batch)
    return mean_pool(states, batch)
