"""Vectors for judging: all layers of a few thousand sentences, or two vectors a text of a large corpus.

Both come from one full pass. The exits are taken afterwards by `leap.exits.rules`, which the tests hold equal
to the exit runtime, so full depth and early exit differ by nothing but the exit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.errors import UserError
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged
from leap.progress import bar

# Texts tokenised at a time: token ids as Python integers are the largest thing that a corpus would leave.
CHUNK = 20_000


@dataclass(frozen=True)
class Encoded:
    """N texts at full depth and at their exit.

    full, exited: [N, D] float32, length 1.
    layers: [N] int64, each text's exit layer, counted from 1.
    """

    full: Tensor
    exited: Tensor
    layers: Tensor


def layer_vectors(model: LeapEncoder, sentences: Sequence[str], batch_size: int) -> Tensor:
    """Every layer's pooled vector of every sentence.

    Returns:
        [L + 1, N, D] float32 on the CPU, not normalised; index 0 is the embedding layer.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    vectors = torch.empty(model.depth + 1, len(sentences), model.encoder.config.width)
    for rows, pooled in model.pooled_layers(sentences, batch_size):
        vectors[:, rows] = pooled
    _check_finite(vectors, model)
    return vectors


def full_and_exited(
    model: LeapEncoder, texts: Sequence[str], rule: ExitRule, batch_size: int, what: str = "texts"
) -> Encoded:
    """Full-depth and exited vectors of any number of texts, keeping two vectors a text.

    Equal texts are encoded once: a vector's last bits may differ from batch to batch, and equal documents
    must tie.

    Args:
        model: the encoder.
        texts: in any order.
        rule: the deployable exit rule.
        batch_size: rows computed together.
        what: names the texts in the progress bar.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    unique = list(place)
    full = torch.empty(len(unique), model.encoder.config.width)
    exited = torch.empty_like(full)
    layers = torch.empty(len(unique), dtype=torch.int64)
    with bar(total=len(unique), desc=what, unit="text") as progress:
        for start in range(0, len(unique), CHUNK):
            for rows, pooled in model.pooled_layers(unique[start : start + CHUNK], batch_size):
                index = torch.tensor(rows) + start
                layers[index] = converged(pooled, rule)
                full[index] = F.normalize(pooled[-1], dim=-1)
                exited[index] = F.normalize(at_layers(pooled, layers[index]), dim=-1)
                progress.update(len(rows))
    _check_finite(full, model)
    _check_finite(exited, model)
    back = torch.tensor([place[text] for text in texts], dtype=torch.int64)
    return Encoded(full[back], exited[back], layers[back])


def _check_finite(vectors: Tensor, model: LeapEncoder) -> None:
    if not vectors.isfinite().all():
        raise UserError(
            f"{model.folder} gives vectors that are not finite: its weights are damaged, train it again"
        )
