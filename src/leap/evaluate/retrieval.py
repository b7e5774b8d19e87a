"""Retrieval on a collection in BEIR form: exact search, scored by trec_eval's measures through ir-measures.

Three modes, from one pass over the texts: `full` (both sides at full depth), `query_exit` (queries leave early and
search the index of full-depth documents) and `exit` (both sides leave early). And by layer: queries that leave at
layer l in the model's own index at full depth, in the teacher's index where the two models share a space, and in
an index of documents that left at layer l too.

Ranking: by cosine, equal ones (to nine decimals) by document id in descending order, which is trec_eval's own
tie rule. The ranks are handed to the scorer, not the cosines, which it would round to float32 and tie again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import torch
from ir_measures import R, nDCG
from torch import Tensor
from torch.nn import functional as F

from leap.core.settings.evaluation import EvaluationSettings
from leap.data.beir import Collection
from leap.evaluate.encode import Encoded, full_and_exited, full_vectors
from leap.evaluate.lengths import length_bins
from leap.evaluate.vector_cache import VectorCache, vector_cache
from leap.evidence.bootstrap import mean_interval, percentile_interval, resamples
from leap.evidence.spearman import Array
from leap.exits import ExitRule, LeapEncoder
from leap.exits.search import Search, nearest

RANKED = 100
MEASURES = {**{f"ndcg_at_{k}": nDCG @ k for k in (1, 3, 5, 10)}, "recall_at_100": R @ RANKED}
# Documents ranked where nDCG@10 is all that is asked.
TOP = 10
MODES = ("full", "query_exit", "exit")
# Two models share a space where the same texts have vectors at least so near in both, on average: a student that
# imitates its teacher's vectors comes to .8 and more, two models that never met to 0.
SHARED_SPACE = 0.5

Ranking = dict[str, list[str]]
Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class TeacherIndex:
    """The same queries in an index that the teacher made.

    own: [Q] float64, nDCG@10 of the teacher's own queries.
    similarity: the mean cosine of the model's full-depth queries to the teacher's; null where widths differ.
    scores: mode ("full", "query_exit") to the model's nDCG@10 there, [Q] float64; empty where spaces differ.
    by_layer: L arrays [Q] float64, the same by query layer; empty where spaces differ.
    """

    own: Array
    similarity: float | None
    scores: dict[str, Array]
    by_layer: list[Array]


@dataclass(frozen=True)
class Retrieved:
    """A collection as all modes rank it.

    queries: the judged queries' ids.
    sought, held: the vectors of queries and documents.
    query_layers: [Q] int64, where queries leave that search the index at full depth.
    scores: mode to measure to [Q] float64, a query's score.
    own_index: L arrays [Q] float64, nDCG@10 of queries at layer l in the index at full depth.
    both_exit: the same with documents at layer l too.
    teacher: the teacher's index; null where no teacher was given.
    """

    queries: list[str]
    sought: Encoded
    held: Encoded
    query_layers: Tensor
    scores: dict[str, dict[str, Array]]
    own_index: list[Array]
    both_exit: list[Array]
    teacher: TeacherIndex | None


def measure_retrieval(
    model: LeapEncoder,
    collection: Collection,
    skip_own_id: bool,
    settings: EvaluationSettings,
    vectors: Path,
    teacher: LeapEncoder | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure a model on one collection, with its own exit rule.

    Args:
        skip_own_id: never rank the document whose id is the query's.
        settings: batches, bins, resamples and the bound of the cache.
        vectors: the folder of the vector cache.
        teacher: the model whose index is searched too.

    Returns:
        Everything in retrieval/<set>.json below its head, and the columns of retrieval/<set>.parquet.
    """
    cache = vector_cache(settings.cache_gb, vectors)
    retrieved = retrieve(model, collection, model.rule, settings.batch_size, skip_own_id, cache, teacher)
    figures = retrieval_figures(retrieved, settings.length_bins, settings.bootstrap, settings.seed)
    return figures, query_columns(retrieved)


def retrieve(
    model: LeapEncoder,
    collection: Collection,
    rule: ExitRule,
    batch_size: int,
    skip_own_id: bool,
    cache: VectorCache | None = None,
    teacher: LeapEncoder | None = None,
) -> Retrieved:
    """Encode queries and documents once and rank them in all modes; arguments as of `measure_retrieval`.

    Queries and documents have the model's prompts of their kinds, as in `encode_query` and `encode_document`.
    Queries are few, so all their layers are held; documents are searched layer by layer as they are encoded, and
    two vectors a document stay.
    """
    queries, documents = list(collection.queries), tie_order(collection.corpus)
    texts = [collection.queries[key] for key in queries], [collection.corpus[key] for key in documents]
    own = own_places(queries, documents) if skip_own_id else None
    by_layer = torch.empty(model.depth, len(queries), model.get_embedding_dimension())

    def collect(places: Tensor, pooled: Tensor) -> None:
        by_layer[:, places] = F.normalize(pooled[1:], dim=-1)

    sought = full_and_exited(model, texts[0], rule, batch_size, "queries", cache, collect, "query")
    searches = [Search(layer, TOP, own, device=model.device) for layer in by_layer[:-1]]

    def search(places: Tensor, pooled: Tensor) -> None:
        for layer, running in enumerate(searches, start=1):
            running.add(pooled[layer], places)

    held = full_and_exited(model, texts[1], rule, batch_size, "documents", cache, search, "document")

    def ndcg(places: Tensor) -> Array:
        return query_scores(name_places(places, queries, documents), collection.qrels, queries)["ndcg_at_10"]

    def in_index(index: Tensor, layers: Tensor) -> list[Array]:
        return [ndcg(nearest(layer, index, TOP, own, device=model.device)) for layer in layers]

    early, query_layers = early_queries(model, texts[0], sought, batch_size)
    sides = {
        "full": (sought.full, held.full),
        "query_exit": (early, held.full),
        "exit": (sought.exited, held.exited),
    }
    scores = {}
    for mode in MODES:
        ranked = ranking(*sides[mode], queries, documents, skip_own_id, model.device)
        scores[mode] = query_scores(ranked, collection.qrels, queries)
    full = scores["full"]["ndcg_at_10"]
    return Retrieved(
        queries,
        sought,
        held,
        query_layers,
        scores,
        own_index=[*in_index(held.full, by_layer[:-1]), full],
        both_exit=[*(ndcg(running.best()) for running in searches), full],
        teacher=None
        if teacher is None
        else _in_teacher_index(teacher, texts, sought, early, by_layer, batch_size, cache, in_index),
    )


def early_queries(
    model: LeapEncoder, texts: Sequence[str], sought: Encoded, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Encode queries as `encode_query` lets them leave: by leap.json's rule for queries, else by the exit rule.

    `sought` are their vectors by the exit rule. Returns [Q, D] float32 of length 1, and the layers where they
    left, [Q] int64.
    """
    if "query" not in model.input_rules:
        return sought.exited, sought.layers
    vectors, layers = model.encode(
        list(texts),
        batch_size=batch_size,
        input_type="query",
        convert_to_tensor=True,
        normalize_embeddings=True,
        return_exit_layers=True,
    )
    return vectors.cpu(), torch.from_numpy(layers)


def _in_teacher_index(
    teacher: LeapEncoder,
    texts: tuple[list[str], list[str]],
    sought: Encoded,
    early: Tensor,
    by_layer: Tensor,
    batch_size: int,
    cache: VectorCache | None,
    in_index: Callable[[Tensor, Tensor], list[Array]],
) -> TeacherIndex:
    queries, index = (
        full_vectors(teacher, side, batch_size, f"teacher's {what}", cache, prompt)
        for side, what, prompt in zip(texts, ("queries", "documents"), ("query", "document"), strict=True)
    )
    (own,) = in_index(index, queries[None])
    if queries.shape != sought.full.shape:
        return TeacherIndex(own, None, {}, [])
    similarity = F.cosine_similarity(sought.full, queries, dim=-1).double().mean().item()
    if similarity < SHARED_SPACE:
        return TeacherIndex(own, similarity, {}, [])
    *earlier, full = in_index(index, by_layer)
    (exited,) = in_index(index, early[None])
    return TeacherIndex(own, similarity, {"full": full, "query_exit": exited}, [*earlier, full])


def retrieval_figures(retrieved: Retrieved, length_edges: Sequence[int], draws: int, seed: int) -> dict[str, Any]:
    """Compute everything in retrieval/<set>.json below its head (docs/formats.md).

    Args:
        length_edges: of the bins by a query's and by a document's tokens.
        draws: bootstrap resamples over queries.
        seed: of the resamples; all intervals use the same ones.
    """
    figures: dict[str, Any] = {"n_queries": len(retrieved.queries), "n_documents": len(retrieved.held.layers)}
    for name in MEASURES:
        figures |= {f"{name}_{mode}": float(retrieved.scores[mode][name].mean()) for mode in retrieved.scores}
    by_query = {mode: scores["ndcg_at_10"] for mode, scores in retrieved.scores.items()}
    for mode, values in by_query.items():
        figures[f"ndcg_at_10_{mode}_ci95"] = mean_interval(values, draws, seed)
    likeness = F.cosine_similarity(retrieved.held.exited, retrieved.held.full, dim=-1).double().numpy()
    layers = retrieved.held.layers.double().numpy()
    return {
        **figures,
        **_drop("drop", by_query["exit"], by_query["full"], draws, seed),
        **_drop("query_drop", by_query["query_exit"], by_query["full"], draws, seed),
        "by_query_layer": by_query_layer(retrieved),
        "teacher_index": None if retrieved.teacher is None else _teacher_figures(retrieved.teacher),
        "expected_layers_queries": retrieved.query_layers.double().mean().item(),
        "expected_layers_documents": float(layers.mean()),
        "queries_by_length": [
            {
                "tokens": bounds,
                "n": int(inside.sum()),
                "expected_layers": float(retrieved.query_layers.double().numpy()[inside].mean()),
                **{f"ndcg_at_10_{mode}": float(values[inside].mean()) for mode, values in by_query.items()},
            }
            for bounds, inside in length_bins(retrieved.sought.tokens.numpy(), length_edges)
        ],
        "documents_by_length": [
            {
                "tokens": bounds,
                "n": int(inside.sum()),
                "expected_layers": float(layers[inside].mean()),
                "similarity": float(likeness[inside].mean()),
            }
            for bounds, inside in length_bins(retrieved.held.tokens.numpy(), length_edges)
        ],
    }


def by_query_layer(retrieved: Retrieved) -> list[dict[str, Any]]:
    """List nDCG@10 of queries that leave at each layer, by index; null in the teacher's where spaces differ."""
    teacher = [float(values.mean()) for values in retrieved.teacher.by_layer] if retrieved.teacher else []
    return [
        {
            "layer": layer + 1,
            "own_index": float(own.mean()),
            "teacher_index": teacher[layer] if teacher else None,
            "both_exit": float(both.mean()),
        }
        for layer, (own, both) in enumerate(zip(retrieved.own_index, retrieved.both_exit, strict=True))
    ]


def query_columns(retrieved: Retrieved) -> dict[str, Any]:
    """List the columns of retrieval/<set>.parquet: what a comparison with another variant needs of each query."""
    return {
        "query": retrieved.queries,
        "tokens": retrieved.sought.tokens.numpy(),
        "layer": retrieved.query_layers.numpy(),
        **{f"ndcg_at_10_{mode}": scores["ndcg_at_10"] for mode, scores in retrieved.scores.items()},
    }


def _drop(name: str, left: Array, full: Array, draws: int, seed: int) -> dict[str, Any]:
    """Compute the share of full depth's mean that is lost, and its interval by paired resamples of queries.

    Null where nothing is found at full depth; the interval is null where that is so in a resample.
    """
    if not full.sum() > 0:
        return {name: None, f"{name}_ci95": None}
    blocks = [(counts @ left, counts @ full) for counts in resamples(len(full), draws, seed)]
    known = all((whole > 0).all() for _, whole in blocks)
    return {
        name: float(1 - left.mean() / full.mean()),
        f"{name}_ci95": percentile_interval([1 - part / whole for part, whole in blocks]) if known else None,
    }


def _teacher_figures(teacher: TeacherIndex) -> dict[str, Any]:
    modes = {f"ndcg_at_10_{mode}": float(values.mean()) for mode, values in teacher.scores.items()}
    empty = dict.fromkeys(("ndcg_at_10_full", "ndcg_at_10_query_exit"))
    return {"ndcg_at_10_teacher": float(teacher.own.mean()), "similarity": teacher.similarity, **empty, **modes}


def tie_order(corpus: Mapping[str, str]) -> list[str]:
    return sorted(corpus, reverse=True)


def ranking(
    sought: Tensor,
    held: Tensor,
    queries: list[str],
    documents: list[str],
    skip_own_id: bool,
    device: torch.device | None = None,
) -> Ranking:
    """Rank each query's documents, best first, at most RANKED of them.

    Args:
        sought: [Q, D], the queries' vectors.
        held: [N, D], the documents' vectors.
        queries: [Q] ids.
        documents: [N] ids, of `tie_order`.
        skip_own_id: never rank the document whose id is the query's.
    """
    own = own_places(queries, documents) if skip_own_id else None
    return name_places(nearest(sought, held, RANKED, own, device=device), queries, documents)


def name_places(places: Tensor, queries: list[str], documents: list[str]) -> Ranking:
    return {
        query: [documents[place] for place in row if place >= 0]
        for query, row in zip(queries, places.tolist(), strict=True)
    }


def own_places(queries: list[str], documents: list[str]) -> Tensor:
    """Find the place of the document with each query's own id, -1 where there is none; [Q] int64."""
    place = {document: number for number, document in enumerate(documents)}
    return torch.tensor([place.get(query, -1) for query in queries], dtype=torch.int64)


def query_scores(ranked: Ranking, qrels: Qrels, queries: list[str]) -> dict[str, Array]:
    """Score nDCG at 1, 3, 5, 10 (linear gains, log2 discount) and recall at 100 of each judged query.

    Args:
        ranked: query id to document ids, best first; a judged query that is missing counts as 0.
        qrels: query id to document id to relevance.
        queries: the judged queries, in the order of the result.

    Returns:
        Measure to [Q] float64.
    """
    run = {
        query: {document: float(len(ids) - rank) for rank, document in enumerate(ids)}
        for query, ids in ranked.items()
    }
    row = {query: number for number, query in enumerate(queries)}
    scores = {name: np.zeros(len(queries)) for name in MEASURES}
    names = {str(measure): name for name, measure in MEASURES.items()}
    for metric in ir_measures.pytrec_eval.iter_calc(list(MEASURES.values()), qrels, run):
        scores[names[str(metric.measure)]][row[metric.query_id]] = metric.value
    return scores
