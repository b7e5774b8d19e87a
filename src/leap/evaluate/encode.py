"""Vectors for judging: all layers of a few thousand sentences, or some vectors a text of a large corpus.

All come from full passes. The exits are taken afterwards by `leap.exits.rules`, which the tests hold equal to the
exit runtime, so full depth and early exit differ by nothing but the exit. With a cache no text is encoded twice by
the same model, whichever stage asks and whatever its exit rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.progress import bar
from leap.evaluate.vector_cache import VectorCache
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged

# Texts whose layers are held at a time.
CHUNK = 4096

# Is given some texts' places and what an exit at each of their layers returns, [L + 1, N, D] float32.
Layers = Callable[[Tensor, Tensor], None]


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
    model: LeapEncoder,
    sentences: Sequence[str],
    batch_size: int,
    cache: VectorCache | None = None,
    progress: Callable[[int], object] | None = None,
    prompt_name: str | None = None,
) -> Tensor:
    """Compute every layer's pooled vector of every sentence.

    Args:
        cache: where vectors are stored; None encodes again.
        progress: called with how many more sentences are done.
        prompt_name: the model's prompt before every sentence; its default one if None.

    Returns:
        [L + 1, N, D] float32 on the CPU, not normalised; index 0 is the embedding layer.

    Raises:
        UserError: the model gives vectors that are not finite.
    """

    def compute() -> dict[str, Tensor]:
        vectors = torch.empty(model.depth + 1, len(sentences), model.width)
        for rows, pooled in model.pooled_layers(sentences, batch_size, prompt_name=prompt_name):
            vectors[:, rows] = pooled
            if progress is not None:
                progress(len(rows))
        _check_finite(vectors, model)
        return {"pooled": vectors}

    if cache is None:
        return compute()["pooled"]
    return cache.vectors(model, sentences, f"all layers, batches of {batch_size}", compute, prompt_name)["pooled"]


def full_vectors(
    model: LeapEncoder,
    texts: Sequence[str],
    batch_size: int,
    what: str = "texts",
    cache: VectorCache | None = None,
    prompt_name: str | None = None,
) -> Tensor:
    """Compute full depth alone, [N, d] float32 on the CPU, length 1; arguments as `full_and_exited`."""
    unique, back = _unique(texts)

    def compute() -> dict[str, Tensor]:
        vectors = torch.empty(len(unique), model.width)
        with bar(total=len(unique), desc=what, unit="text") as progress:
            for start in range(0, len(unique), CHUNK):
                chunk = unique[start : start + CHUNK]
                for rows, pooled in model.pooled_layers(chunk, batch_size, prompt_name=prompt_name):
                    vectors[torch.tensor(rows) + start] = F.normalize(pooled[-1], dim=-1)
                    progress.update(len(rows))
        _check_finite(vectors, model)
        return {"full": vectors}

    what = f"full depth, batches of {batch_size}"
    whole = compute() if cache is None else cache.vectors(model, unique, what, compute, prompt_name)
    vectors = whole["full"]
    if model.get_embedding_dimension() < model.width:
        vectors = F.normalize(vectors[:, : model.truncate_dim], dim=-1)
    return vectors[back]


def full_and_exited(
    model: LeapEncoder,
    texts: Sequence[str],
    rule: ExitRule,
    batch_size: int,
    what: str = "texts",
    cache: VectorCache | None = None,
    layers: Layers | None = None,
    prompt_name: str | None = None,
) -> Encoded:
    """Compute full-depth and exited vectors of any number of texts, holding two vectors a text.

    Equal texts are encoded once: a vector's last bits may differ from batch to batch, and equal documents
    must tie.

    Args:
        rule: the deployable exit rule.
        what: names the texts in the progress bar.
        cache: where vectors of all layers are stored, unless they exceed it; None encodes again.
        layers: receives every text's layers, some texts at a time: what needs them all at once would hold
            (L + 1) vectors a text.
        prompt_name: the model's prompt before every text; its default one if None.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    unique, back = _unique(texts)
    width = model.width
    full, exited = torch.empty(2, len(unique), model.get_embedding_dimension())
    exits = torch.empty(len(unique), dtype=torch.int64)
    if cache is not None and len(unique) * (model.depth + 1) * full.element_size() * width > cache.limit:
        cache = None
    with bar(total=len(unique), desc=what, unit="text") as progress:
        for start in range(0, len(unique), CHUNK):
            chunk = unique[start : start + CHUNK]
            pooled = layer_vectors(model, chunk, batch_size, cache, progress.update, prompt_name)
            rows = slice(start, start + len(chunk))
            exits[rows] = converged(pooled, rule)
            returned = model.returned(pooled)
            full[rows] = F.normalize(returned[-1], dim=-1)
            exited[rows] = F.normalize(at_layers(returned, exits[rows]), dim=-1)
            if layers is not None:
                places = ((back >= start) & (back < start + len(chunk))).nonzero().flatten()
                layers(places, returned[:, back[places] - start])
    return Encoded(full[back], exited[back], exits[back], token_counts(model, unique, prompt_name)[back])


def _unique(texts: Sequence[str]) -> tuple[list[str], Tensor]:
    """The different texts, and each text's place among them, [N] int64."""
    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return list(place), torch.tensor([place[text] for text in texts], dtype=torch.int64)


def token_counts(model: LeapEncoder, texts: Sequence[str], prompt_name: str | None = None) -> Tensor:
    """Count each text's tokens, [N] int64: prompt and special tokens included, cut at the model's longest."""
    prompt = model.prompts.text(None, prompt_name) or ""
    prompted = [f"{prompt}{text}" for text in texts]
    chunks = (model.tokenizer(prompted[start : start + CHUNK]) for start in range(0, len(texts), CHUNK))
    return torch.tensor([len(ids) for chunk in chunks for ids in chunk], dtype=torch.int64)


def _check_finite(vectors: Tensor, model: LeapEncoder) -> None:
    if not vectors.isfinite().all():
        raise UserError(
            f"{model.folder} gives vectors that are not finite: its weights are damaged, train or fetch it again"
        )
