"""Scores a checkpoint on one set of sentence pairs: full depth, exited, every layer, truncated.

    python stages/evaluate_sts.py --variant leap --seed 1 --set software

Reads models/<variant>-<seed>/ and data/similarity/<set>.parquet; writes
evaluations/<variant>-<seed>/sts/<set>.json and <set>.parquet, a row a pair.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.pairs import read_pairs
from leap.errors import UserError
from leap.evaluation.cache import vector_cache
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.evidence import head, write_evidence
from leap.evaluation.per_text import write_scores
from leap.evaluation.similarity import pair_columns, pair_cosines, similarity_figures
from leap.settings import Settings
from leap.stage import run


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed, name, chosen = arguments.variant, arguments.seed, arguments.set, settings.evaluation
    if name not in settings.similarity:
        raise UserError(f"similarity has no set {name!r}: it has {', '.join(settings.similarity)}")
    model, rule = open_checkpoint(settings, variant, seed, chosen.device)
    data = Path(f"data/similarity/{name}.parquet")
    pairs = read_pairs(data)
    cosines = pair_cosines(
        model, pairs.sentence1, pairs.sentence2, rule, chosen.batch_size, vector_cache(chosen.cache_gb)
    )
    task = settings.similarity[name].task
    evidence = {
        **head(
            "sts", settings, variant, seed, checkpoint_folder(variant, seed), [data], str(model.device), name
        ),
        **similarity_figures(cosines, pairs.scores, task, chosen.bootstrap, chosen.seed, chosen.length_bins),
    }
    folder = Path(f"evaluations/{variant}-{seed}/sts")
    write_scores(folder / f"{name}.parquet", pair_columns(cosines, pairs.scores))
    write_evidence(folder / f"{name}.json", evidence)
    keys = ("spearman_full", "spearman_exit", "spearman_gain", "expected_layers")
    return {
        "stage": "evaluate_sts",
        "variant": variant,
        "seed": seed,
        "set": name,
        **{key: evidence[key] for key in keys},
    }


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed", "set"))
