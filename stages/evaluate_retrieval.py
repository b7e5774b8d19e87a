"""Scores a checkpoint on one retrieval collection, full depth and exited.

    python stages/evaluate_retrieval.py --variant leap --seed 1 --set docstrings

Reads models/<variant>-<seed>/ and data/retrieval/<set>/; writes
evaluations/<variant>-<seed>/retrieval/<set>.json and <set>.parquet, a row a query.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.beir import read_collection
from leap.errors import UserError
from leap.evaluation.cache import vector_cache
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.evidence import head, write_evidence
from leap.evaluation.per_text import write_scores
from leap.evaluation.retrieval import query_columns, retrieval_figures, retrieve
from leap.settings import Settings
from leap.stage import run


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed, name, chosen = arguments.variant, arguments.seed, arguments.set, settings.evaluation
    if name not in settings.retrieval:
        raise UserError(f"retrieval has no set {name!r}: it has {', '.join(settings.retrieval)}")
    model, rule = open_checkpoint(settings, variant, seed, chosen.device)
    data = Path(f"data/retrieval/{name}")
    collection = read_collection(data)
    skip_own_id = settings.retrieval[name].skip_own_id
    cache = vector_cache(chosen.cache_gb)
    found = retrieve(model, collection, rule, chosen.batch_size, skip_own_id, cache)
    evidence = {
        **head(
            *("retrieval", settings, variant, seed, checkpoint_folder(variant, seed)),
            *([data], str(model.device), name),
        ),
        **retrieval_figures(found, chosen.length_bins, chosen.bootstrap, chosen.seed),
    }
    folder = Path(f"evaluations/{variant}-{seed}/retrieval")
    write_scores(folder / f"{name}.parquet", query_columns(found))
    write_evidence(folder / f"{name}.json", evidence)
    keys = ("ndcg_at_10_full", "ndcg_at_10_exit", "drop", "expected_layers_documents")
    return {
        "stage": "evaluate_retrieval",
        "variant": variant,
        "seed": seed,
        "set": name,
        **{key: evidence[key] for key in keys},
    }


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed", "set"))
