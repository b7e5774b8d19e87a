"""Times a checkpoint: full depth, exits, checks without exits, and the same depth fixed.

    python stages/benchmark_latency.py --variant leap --seed 1

Reads models/<variant>-<seed>/ and data/similarity/<primary_set>.parquet, whose sentences are encoded; writes
evaluations/<variant>-<seed>/latency.json. The figures are this machine's: keep it idle meanwhile.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.pairs import read_pairs
from leap.evaluation.checkpoint import checkpoint_folder, open_checkpoint
from leap.evaluation.evidence import head, write_evidence
from leap.evaluation.latency import latency_figures
from leap.settings import Settings
from leap.stage import run


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed = arguments.variant, arguments.seed
    model, rule = open_checkpoint(settings, variant, seed, settings.latency.device)
    data = Path(f"data/similarity/{settings.evaluation.primary_set}.parquet")
    pairs = read_pairs(data)
    sentences = list(dict.fromkeys([*pairs.sentence1, *pairs.sentence2]))
    evidence = {
        **head(
            "latency", settings, variant, seed, checkpoint_folder(variant, seed), [data], str(model.device)
        ),
        **latency_figures(model, sentences, rule, settings.latency, settings.evaluation.seed),
    }
    write_evidence(Path(f"evaluations/{variant}-{seed}/latency.json"), evidence)
    return {
        "stage": "benchmark_latency",
        "variant": variant,
        "seed": seed,
        "speed_up": evidence["speed_up"],
        "ms_p50": {f"{row['path']}@{row['batch']}": row["ms_p50"] for row in evidence["rows"]},
    }


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))
