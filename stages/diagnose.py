"""Diagnoses a checkpoint's exits: its layers, the sentences that leave, strategies and rules side by side.

    python stages/diagnose.py --variant leap --seed 1

Reads models/<variant>-<seed>/, the teacher, and data/similarity/<primary_set>.parquet, whose unique sentences
are diagnosed; writes evaluations/<variant>-<seed>/diagnose.json and diagnose.parquet, a row a sentence.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.pairs import read_pairs
from leap.errors import UserError
from leap.evaluation.cache import vector_cache
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.encode import full_and_exited, layer_vectors, token_counts
from leap.evaluation.evidence import head, write_evidence
from leap.evaluation.examination import examine, pairs_among, sentence_scores
from leap.evaluation.per_text import write_scores
from leap.evaluation.strategies import own_strategies
from leap.exits import LeapEncoder
from leap.model.locate import locate
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
    cache = vector_cache(chosen.cache_gb)
    pooled = layer_vectors(model, sentences, chosen.batch_size, cache)
    tokens = token_counts(model, sentences)
    teacher = LeapEncoder(locate(settings.teacher).folder, chosen.device)
    reference = full_and_exited(teacher, sentences, teacher.rule, chosen.batch_size, "teacher", cache).full
    likeness, scores = sentence_scores(pooled, tokens, sentences, reference, rule, chosen.nn_k)
    evidence = {
        **head(
            "diagnose", settings, variant, seed, checkpoint_folder(variant, seed), [data], str(model.device)
        ),
        "n": len(sentences),
        "set": chosen.primary_set,
        **examine(pooled, tokens, pairs_among(pairs, sentences), rule, chosen, own_strategies(model, rule)),
        "teacher": likeness,
    }
    folder = Path(f"evaluations/{variant}-{seed}")
    write_scores(folder / "diagnose.parquet", scores)
    write_evidence(folder / "diagnose.json", evidence)
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
