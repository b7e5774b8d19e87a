"""Vectors for judging: all layers of a few thousand sentences, or two vectors a text of a large corpus.

Both come from one full pass. The exits are taken afterwards by `leap.exits.rules`, which the tests hold equal
to the exit runtime, so full depth and early exit differ by nothing but the exit. With a cache no text is
encoded twice by the same model, whichever stage asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.progress import bar
from leap.evaluate.vector_cache import VectorCache
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged

# Texts tokenised at a time: token ids as Python integers are the largest thing that a corpus would leave.
CHUNK = 20_000


@dataclass(frozen=True)
class Encoded:
    """N texts at full depth and at their exit.

    full, exited: [N, D] float32, length 1.
    layers: [N] int64, each text's exit layer, counted from 1.
    tokens: [N] int64, each text's length as the model sees it.
    """

    full: Tensor
    exited: Tensor
    layers: Tensor
    tokens: Tensor


def layer_vectors(
    model: LeapEncoder, sentences: Sequence[str], batch_size: int, cache: VectorCache | None = None
) -> Tensor:
    """Every layer's pooled vector of every sentence.

    Args:
        model: the encoder.
        sentences: in any order.
        batch_size: rows computed together.
        cache: where vectors are kept; none encodes anew.

    Returns:
        [L + 1, N, D] float32 on the CPU, not normalised; index 0 is the embedding layer.

    Raises:
        UserError: the model gives vectors that are not finite.
    """

    def compute() -> dict[str, Tensor]:
        vectors = torch.empty(model.depth + 1, len(sentences), model.encoder.config.width)
        for rows, pooled in model.pooled_layers(sentences, batch_size):
            vectors[:, rows] = pooled
        _check_finite(vectors, model)
        return {"pooled": vectors}

    if cache is None:
        return compute()["pooled"]
    return cache.vectors(model, sentences, f"all layers, batches of {batch_size}", compute)["pooled"]


def full_and_exited(
    model: LeapEncoder,
    texts: Sequence[str],
    rule: ExitRule,
    batch_size: int,
    what: str = "texts",
    cache: VectorCache | None = None,
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
        cache: where vectors are kept; none encodes anew.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    unique = list(place)

    def compute() -> dict[str, Tensor]:
        return _two_vectors(model, unique, rule, batch_size, what)

    key = f"full and exited by {rule}, batches of {batch_size}"
    found = compute() if cache is None else cache.vectors(model, unique, key, compute)
    back = torch.tensor([place[text] for text in texts], dtype=torch.int64)
    return Encoded(**{name: tensor[back] for name, tensor in found.items()})


def token_counts(model: LeapEncoder, texts: Sequence[str]) -> Tensor:
    """Each text's length in tokens as the model sees it: special tokens included, cut at its longest input.

    Returns:
        [N] int64.
    """
    return torch.tensor([len(ids) for ids in model.tokenizer(texts)], dtype=torch.int64)


def _two_vectors(
    model: LeapEncoder, unique: Sequence[str], rule: ExitRule, batch_size: int, what: str
) -> dict[str, Tensor]:
    full = torch.empty(len(unique), model.encoder.config.width)
    exited = torch.empty_like(full)
    layers, tokens = (torch.empty(len(unique), dtype=torch.int64) for _ in range(2))
    with bar(total=len(unique), desc=what, unit="text") as progress:
        for start in range(0, len(unique), CHUNK):
            chunk = unique[start : start + CHUNK]
            tokens[start : start + CHUNK] = token_counts(model, chunk)
            for rows, pooled in model.pooled_layers(chunk, batch_size):
                index = torch.tensor(rows) + start
                layers[index] = converged(pooled, rule)
                full[index] = F.normalize(pooled[-1], dim=-1)
                exited[index] = F.normalize(at_layers(pooled, layers[index]), dim=-1)
                progress.update(len(rows))
    _check_finite(full, model)
    _check_finite(exited, model)
    return {"full": full, "exited": exited, "layers": layers, "tokens": tokens}


def _check_finite(vectors: Tensor, model: LeapEncoder) -> None:
    if not vectors.isfinite().all():
        raise UserError(
            f"{model.folder} gives vectors that are not finite: its weights are damaged, train it again"
        )
