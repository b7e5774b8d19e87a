"""Proof of the evaluators: published scores of all-MiniLM-L6-v2, measured again on real data.

`tools/prove_evaluators.py` measures and writes them (results/*-evaluators); the tests marked real_data
measure the same figures. Nobody's model is judged by an evaluator that misses a published score.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.settings.sources import LocalCollection
from leap.data.beir import read_collection
from leap.data.pairs import read_pairs
from leap.evaluate.encode import layer_vectors
from leap.evaluate.layers import cumulative_rates
from leap.evaluate.retrieval import retrieval_figures, retrieve
from leap.evaluate.similarity import pair_cosines, similarity_figures
from leap.evaluate.vector_cache import VectorCache
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import converged, near_final
from leap.extract.collections import write_collection

RULE = ExitRule(threshold=0.95, min_layer=3, patience=1)


@dataclass(frozen=True)
class Published:
    """A figure that the evaluators must give: within `tolerance` of `value`, as `source` has it."""

    what: str
    value: float
    tolerance: float
    source: str


STSB = Published("STS-B test, Spearman", 0.8203, 0.001, "sbert.net, pretrained models")
EXITS = Published("STS-B sentences that leave early, theta .95, min_layer 3", 0.0058, 0.0005, "prototype")
ORACLE = Published("the same for the oracle", 0.0, 0.0, "prototype")
SCIFACT = Published("SciFact, nDCG@10", 0.6451, 0.002, "MTEB")
ARGUANA = Published("ArguAna, nDCG@10, own id left out", 0.5017, 0.002, "MTEB")


def measured(
    model: LeapEncoder, data: Path, scratch: Path, cache: VectorCache | None
) -> Iterator[tuple[Published, float]]:
    """Measures every published figure, the quick ones first.

    Args:
        model: all-MiniLM-L6-v2, at its 256 tokens.
        data: holds stsb/test.parquet, beir/scifact/ and beir/arguana/.
        scratch: where collections are written in BEIR form.
        cache: keeps vectors, so an interrupted run goes on.
    """
    pairs = read_pairs(data / "stsb" / "test.parquet")
    cosines = pair_cosines(model, pairs.sentence1, pairs.sentence2, RULE, 64, cache)
    yield STSB, similarity_figures(cosines, pairs.scores, "similarity", 100, 17)["spearman_full"]
    # Both sides of every pair, repeats included.
    pooled = layer_vectors(model, [*pairs.sentence1, *pairs.sentence2], 64, cache)
    yield EXITS, cumulative_rates(converged(pooled, RULE), model.depth)[-2]
    yield ORACLE, cumulative_rates(near_final(pooled, RULE.threshold), model.depth)[-2]
    for figure, name, skip in ((SCIFACT, "scifact", False), (ARGUANA, "arguana", True)):
        source = LocalCollection(kind="local", path=f"beir/{name}", skip_own_id=skip)
        write_collection(name, source, data, 0, scratch / name)
        found = retrieve(model, read_collection(scratch / name), RULE, 32, skip, cache)
        yield figure, retrieval_figures(found, [], 100, 17)["ndcg_at_10_full"]


def row(figure: Published, value: float) -> dict[str, Any]:
    """A line of the proof."""
    return {**vars(figure), "found": value, "holds": abs(value - figure.value) <= figure.tolerance}
