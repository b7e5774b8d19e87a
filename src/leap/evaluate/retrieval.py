"""Retrieval on a collection in BEIR form: exact search, scored by trec_eval's measures through ir-measures.

Ranking: by cosine, equal ones (to nine decimals) by document id in descending order, which is trec_eval's own
tie rule. The ranks are handed to the scorer, not the cosines, which it would round to float32 and tie anew.
"""

from collections.abc import Mapping, Sequence
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
from leap.evaluate.encode import Encoded, full_and_exited
from leap.evaluate.lengths import length_bins
from leap.evaluate.vector_cache import VectorCache, vector_cache
from leap.evidence.bootstrap import mean_interval
from leap.evidence.spearman import Array
from leap.exits import ExitRule, LeapEncoder
from leap.exits.search import nearest

RANKED = 100
MEASURES = {**{f"ndcg_at_{k}": nDCG @ k for k in (1, 3, 5, 10)}, "recall_at_100": R @ RANKED}

Ranking = dict[str, list[str]]
Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Retrieved:
    """A collection as both modes rank it.

    queries: the judged queries' ids.
    sought, held: the vectors of queries and documents.
    scores: mode ("full", "exit") to measure to [Q] float64, a query's score.
    """

    queries: list[str]
    sought: Encoded
    held: Encoded
    scores: dict[str, dict[str, Array]]


def measure_retrieval(
    model: LeapEncoder,
    collection: Collection,
    skip_own_id: bool,
    settings: EvaluationSettings,
    vectors: Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure a model on one collection, with its own exit rule.

    Args:
        model: the encoder.
        collection: documents, judged queries and their judgements.
        skip_own_id: never rank the document whose id is the query's.
        settings: batches, bins, resamples and the bound of the cache.
        vectors: the folder of the vector cache.

    Returns:
        Everything in retrieval/<set>.json below its head, and the columns of retrieval/<set>.parquet.
    """
    cache = vector_cache(settings.cache_gb, vectors)
    found = retrieve(model, collection, model.rule, settings.batch_size, skip_own_id, cache)
    figures = retrieval_figures(found, settings.length_bins, settings.bootstrap, settings.seed)
    return figures, query_columns(found)


def retrieve(
    model: LeapEncoder,
    collection: Collection,
    rule: ExitRule,
    batch_size: int,
    skip_own_id: bool,
    cache: VectorCache | None = None,
) -> Retrieved:
    """Encodes queries and documents once and ranks them twice: exited queries search exited documents.

    Args:
        model: the encoder.
        collection: documents, judged queries and their judgements.
        rule: the deployable exit rule.
        batch_size: rows computed together.
        skip_own_id: never rank the document whose id is the query's.
        cache: where vectors are kept; none encodes anew.
    """
    queries, documents = list(collection.queries), tie_order(collection.corpus)
    texts = [collection.queries[key] for key in queries], [collection.corpus[key] for key in documents]
    sought = full_and_exited(model, texts[0], rule, batch_size, "queries", cache)
    held = full_and_exited(model, texts[1], rule, batch_size, "documents", cache)
    scores = {}
    for mode in ("full", "exit"):
        vectors = _of(mode, sought), _of(mode, held)
        found = ranking(vectors[0], vectors[1], queries, documents, skip_own_id, model.device)
        scores[mode] = query_scores(found, collection.qrels, queries)
    return Retrieved(queries, sought, held, scores)


def retrieval_figures(found: Retrieved, length_edges: Sequence[int], draws: int, seed: int) -> dict[str, Any]:
    """Everything in retrieval/<set>.json below its head (docs/architecture.md).

    Args:
        found: the scores.
        length_edges: of the bins by a query's and by a document's tokens.
        draws: bootstrap resamples over queries.
        seed: of the resamples; both intervals use the same ones.
    """
    figures: dict[str, Any] = {"n_queries": len(found.queries), "n_documents": len(found.held.layers)}
    for name in MEASURES:
        figures |= {f"{name}_{mode}": float(found.scores[mode][name].mean()) for mode in found.scores}
    by_query = {mode: scores["ndcg_at_10"] for mode, scores in found.scores.items()}
    for mode, values in by_query.items():
        figures[f"ndcg_at_10_{mode}_ci95"] = mean_interval(values, draws, seed)
    full, exited = figures["ndcg_at_10_full"], figures["ndcg_at_10_exit"]
    likeness = F.cosine_similarity(found.held.exited, found.held.full, dim=-1).double().numpy()
    layers = found.held.layers.double().numpy()
    return {
        **figures,
        "drop": 1 - exited / full if full > 0 else None,
        "expected_layers_queries": found.sought.layers.double().mean().item(),
        "expected_layers_documents": float(layers.mean()),
        "queries_by_length": [
            {
                "tokens": bounds,
                "n": int(inside.sum()),
                "expected_layers": float(found.sought.layers.double().numpy()[inside].mean()),
                **{f"ndcg_at_10_{mode}": float(values[inside].mean()) for mode, values in by_query.items()},
            }
            for bounds, inside in length_bins(found.sought.tokens.numpy(), length_edges)
        ],
        "documents_by_length": [
            {
                "tokens": bounds,
                "n": int(inside.sum()),
                "expected_layers": float(layers[inside].mean()),
                "similarity": float(likeness[inside].mean()),
            }
            for bounds, inside in length_bins(found.held.tokens.numpy(), length_edges)
        ],
    }


def query_columns(found: Retrieved) -> dict[str, Any]:
    """The columns of retrieval/<set>.parquet: what a comparison with another variant needs of each query."""
    return {
        "query": found.queries,
        "tokens": found.sought.tokens.numpy(),
        "layer": found.sought.layers.numpy(),
        **{f"ndcg_at_10_{mode}": scores["ndcg_at_10"] for mode, scores in found.scores.items()},
    }


def tie_order(corpus: Mapping[str, str]) -> list[str]:
    """The document ids in the order in which ties are broken."""
    return sorted(corpus, reverse=True)


def ranking(
    sought: Tensor,
    held: Tensor,
    queries: list[str],
    documents: list[str],
    skip_own_id: bool,
    device: torch.device | None = None,
) -> Ranking:
    """Each query's documents, best first, at most RANKED of them.

    Args:
        sought: [Q, D], the queries' vectors.
        held: [N, D], the documents' vectors.
        queries: [Q] ids.
        documents: [N] ids, of `tie_order`.
        skip_own_id: never rank the document whose id is the query's.
        device: where blocks are compared.
    """
    own = own_places(queries, documents) if skip_own_id else None
    places = nearest(sought, held, RANKED, own, device=device)
    return {
        query: [documents[place] for place in row if place >= 0]
        for query, row in zip(queries, places.tolist(), strict=True)
    }


def own_places(queries: list[str], documents: list[str]) -> Tensor:
    """The place of the document with each query's own id, -1 where there is none; [Q] int64."""
    place = {document: number for number, document in enumerate(documents)}
    return torch.tensor([place.get(query, -1) for query in queries], dtype=torch.int64)


def query_scores(found: Ranking, qrels: Qrels, queries: list[str]) -> dict[str, Array]:
    """nDCG at 1, 3, 5, 10 (linear gains, log2 discount) and recall at 100 of each judged query.

    Args:
        found: query id to document ids, best first; a judged query that is missing counts as 0.
        qrels: query id to document id to relevance.
        queries: the judged queries, in the order of the result.

    Returns:
        Measure to [Q] float64.
    """
    run = {
        query: {document: float(len(ids) - rank) for rank, document in enumerate(ids)}
        for query, ids in found.items()
    }
    row = {query: number for number, query in enumerate(queries)}
    scores = {name: np.zeros(len(queries)) for name in MEASURES}
    names = {str(measure): name for name, measure in MEASURES.items()}
    for metric in ir_measures.pytrec_eval.iter_calc(list(MEASURES.values()), qrels, run):
        scores[names[str(metric.measure)]][row[metric.query_id]] = metric.value
    return scores


def _of(mode: str, encoded: Encoded) -> Tensor:
    return encoded.full if mode == "full" else encoded.exited
