"""Diagnoses a checkpoint's exits: its layers, the sentences that leave, the rivals, a verdict.

    python stages/diagnose.py --variant leap --seed 1

Reads models/<variant>-<seed>/ and data/similarity/<primary_set>.parquet, whose unique sentences are
diagnosed; writes evaluations/<variant>-<seed>/diagnose.json.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.pairs import read_pairs
from leap.errors import UserError
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.diagnosis import diagnose
from leap.evaluation.encode import layer_vectors
from leap.evaluation.evidence import head, write_evidence
from leap.settings import Settings
from leap.stage import run


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed, chosen = arguments.variant, arguments.seed, settings.evaluation
    model, rule = open_checkpoint(settings, variant, seed, chosen.device)
    data = Path(f"data/similarity/{chosen.primary_set}.parquet")
    pairs = read_pairs(data)
    sentences = list(dict.fromkeys([*pairs.sentence1, *pairs.sentence2]))
    if len(sentences) <= chosen.nn_k:
        raise UserError(
            f"evaluation.nn_k: {len(sentences)} sentences of {data} have no {chosen.nn_k} neighbours each; "
            "lower nn_k or choose a larger primary_set"
        )
    pooled = layer_vectors(model, sentences, chosen.batch_size)
    evidence = {
        **head(
            "diagnose", settings, variant, seed, checkpoint_folder(variant, seed), [data], str(model.device)
        ),
        "n": len(sentences),
        "set": chosen.primary_set,
        **diagnose(pooled, rule, chosen.nn_k, chosen.bootstrap, chosen.seed),
    }
    write_evidence(Path(f"evaluations/{variant}-{seed}/diagnose.json"), evidence)
    exits = evidence["exit"]
    return {
        "stage": "diagnose",
        "variant": variant,
        "seed": seed,
        "verdict": evidence["verdict"],
        **{key: exits[key] for key in ("rate", "expected_layers", "similarity", "nn_at_10")},
    }


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))
