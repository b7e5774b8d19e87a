"""The outcome of a retrofit: by layer, the neighbours that queries keep in two indices, and their time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from leap.core.grid import Grid
from leap.core.sample_sizes import NEIGHBOURS
from leap.exits import LeapEncoder
from leap.exits.neighbours import overlap
from leap.exits.search import nearest

# Queries that are timed, at every layer in turn.
TIMED = 30


@dataclass(frozen=True)
class LayerRow:
    """One query layer.

    own: the mean share of a query's ten nearest documents at full depth that it finds in the model's own index.
    old: the share of what the model before finds in its own index that this one's queries find there.
    milliseconds: the median time of one query.
    """

    layer: int
    own: float
    old: float
    milliseconds: float


def measure_retrofit(
    model: LeapEncoder, before: LeapEncoder, queries: Sequence[str], documents: Sequence[str], batch_size: int = 64
) -> list[LayerRow]:
    """Measure each layer of a retrofitted model on held-out queries and documents (more than ten).

    `before` is the model that it was made from.
    """
    index, old = (_full(each, documents, "document", batch_size) for each in (model, before))
    layers = torch.empty(model.depth + 1, len(queries), model.get_embedding_dimension())
    for rows, pooled in model.pooled_layers(queries, batch_size, prompt_name="query"):
        layers[:, rows] = model.returned(pooled)
    own_best = nearest(layers[-1], index, NEIGHBOURS)
    old_best = nearest(_full(before, queries, "query", batch_size), old, NEIGHBOURS)
    times = _milliseconds(model, queries[:TIMED])
    return [
        LayerRow(
            layer,
            overlap(nearest(layers[layer], index, NEIGHBOURS), own_best).mean().item(),
            overlap(nearest(layers[layer], old, NEIGHBOURS), old_best).mean().item(),
            times[layer - 1],
        )
        for layer in range(1, model.depth + 1)
    ]


def table(rows: Sequence[LayerRow]) -> str:
    """Put the rows into columns for a terminal."""
    head = ("queries leave at", "neighbours kept, own index", "in the index of the model before", "ms a query")
    cells = [(str(row.layer), f"{row.own:.1%}", f"{row.old:.1%}", f"{row.milliseconds:.2f}") for row in rows]
    return Grid(head, cells).text()


def _full(model: LeapEncoder, texts: Sequence[str], kind: str, batch_size: int) -> Tensor:
    vectors = torch.empty(len(texts), model.get_embedding_dimension())
    for rows, pooled in model.pooled_layers(texts, batch_size, prompt_name=kind):
        vectors[rows] = pooled[-1, :, : model.truncate_dim]
    return vectors


def _milliseconds(model: LeapEncoder, queries: Sequence[str]) -> list[float]:
    """The median time of one query at each layer; layers take turns, so that all see the same load."""
    times: list[list[float]] = [[] for _ in range(model.depth)]
    for query in (queries[0], *queries):  # the first one warms up
        for layer in range(1, model.depth + 1):
            started = time.perf_counter()
            model.encode_query(query, strategy="fixed", layer=layer, show_progress_bar=False)
            times[layer - 1].append(1000 * (time.perf_counter() - started))
    return [median(each[1:]) for each in times]
