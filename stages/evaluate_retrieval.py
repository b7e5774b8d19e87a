"""Scores a checkpoint on one retrieval collection, full depth and exited.

    python stages/evaluate_retrieval.py --variant leap --seed 1 --set docstrings

Reads models/<variant>-<seed>/ and data/retrieval/<set>/; writes
evaluations/<variant>-<seed>/retrieval/<set>.json.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.beir import read_collection
from leap.errors import UserError
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.evidence import head, write_evidence
from leap.evaluation.retrieval import retrieval_figures
from leap.settings import Settings
from leap.stage import run


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed, name, chosen = arguments.variant, arguments.seed, arguments.set, settings.evaluation
    if name not in settings.retrieval:
        raise UserError(f"retrieval has no set {name!r}: it has {', '.join(settings.retrieval)}")
    model, rule = open_checkpoint(settings, variant, seed, chosen.device)
    data = Path(f"data/retrieval/{name}")
    collection = read_collection(data)
    figures = retrieval_figures(
        model, collection, rule, chosen.batch_size, settings.retrieval[name].skip_own_id
    )
    evidence = {
        **head(
            *("retrieval", settings, variant, seed, checkpoint_folder(variant, seed)),
            *([data], str(model.device), name),
        ),
        **figures,
    }
    write_evidence(Path(f"evaluations/{variant}-{seed}/retrieval/{name}.json"), evidence)
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
