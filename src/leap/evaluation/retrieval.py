"""Retrieval on a collection in BEIR form: exact search, scored by trec_eval's measures through ir-measures.

Ranking: by cosine, equal ones (to nine decimals) by document id in descending order, which is trec_eval's own
tie rule. The ranks are handed to the scorer, not the cosines, which it would round to float32 and tie anew.
"""

from collections.abc import Mapping
from typing import Any

import ir_measures
import torch
from ir_measures import R, nDCG
from torch import Tensor

from leap.data.beir import Collection
from leap.evaluation.encode import Encoded, full_and_exited
from leap.evaluation.search import nearest
from leap.exits import ExitRule, LeapEncoder

RANKED = 100
MEASURES = {**{f"ndcg_at_{k}": nDCG @ k for k in (1, 3, 5, 10)}, "recall_at_100": R @ RANKED}

Ranking = dict[str, list[str]]
Qrels = dict[str, dict[str, int]]


def retrieval_figures(
    model: LeapEncoder,
    collection: Collection,
    rule: ExitRule,
    batch_size: int,
    skip_own_id: bool,
) -> dict[str, Any]:
    """Everything in retrieval/<set>.json below its head (docs/architecture.md).

    Queries and documents are encoded once for both modes; exited queries are searched among exited documents.

    Args:
        model: the encoder.
        collection: documents, judged queries and their judgements.
        rule: the deployable exit rule.
        batch_size: rows computed together.
        skip_own_id: never rank the document whose id is the query's.
    """
    queries, documents = list(collection.queries), tie_order(collection.corpus)
    sought = full_and_exited(model, [collection.queries[key] for key in queries], rule, batch_size, "queries")
    held = full_and_exited(
        model, [collection.corpus[key] for key in documents], rule, batch_size, "documents"
    )
    own = own_places(queries, documents) if skip_own_id else None
    figures: dict[str, Any] = {"n_queries": len(queries), "n_documents": len(documents)}
    scores = {}
    for mode in ("full", "exit"):
        places = nearest(_of(mode, sought).to(model.device), _of(mode, held).to(model.device), RANKED, own)
        ranking = {
            query: [documents[place] for place in row if place >= 0]
            for query, row in zip(queries, places.tolist(), strict=True)
        }
        scores[mode] = score(ranking, collection.qrels)
    for name in MEASURES:
        figures |= {f"{name}_{mode}": scores[mode][name] for mode in scores}
    full, exited = scores["full"]["ndcg_at_10"], scores["exit"]["ndcg_at_10"]
    return {
        **figures,
        "drop": 1 - exited / full if full > 0 else None,
        "expected_layers_queries": sought.layers.double().mean().item(),
        "expected_layers_documents": held.layers.double().mean().item(),
    }


def tie_order(corpus: Mapping[str, str]) -> list[str]:
    """The document ids in the order in which ties are broken."""
    return sorted(corpus, reverse=True)


def own_places(queries: list[str], documents: list[str]) -> Tensor:
    """The place of the document with each query's own id, -1 where there is none; [Q] int64."""
    place = {document: number for number, document in enumerate(documents)}
    return torch.tensor([place.get(query, -1) for query in queries], dtype=torch.int64)


def score(ranking: Ranking, qrels: Qrels) -> dict[str, float]:
    """nDCG at 1, 3, 5, 10 (linear gains, log2 discount) and recall at 100, the mean over the judged queries.

    Args:
        ranking: query id to document ids, best first; a judged query that is missing counts as 0.
        qrels: query id to document id to relevance.
    """
    run = {
        query: {document: float(len(found) - rank) for rank, document in enumerate(found)}
        for query, found in ranking.items()
    }
    found = ir_measures.pytrec_eval.calc_aggregate(list(MEASURES.values()), qrels, run)
    return {name: float(found[measure]) for name, measure in MEASURES.items()}


def _of(mode: str, encoded: Encoded) -> Tensor:
    return encoded.full if mode == "full" else encoded.exited
