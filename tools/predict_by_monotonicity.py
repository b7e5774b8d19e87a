"""The paper's prediction, "monotonic similarity means that exits succeed", on every model of some result folders.

    python tools/predict_by_monotonicity.py results/*/*.json

Reads summaries (reports/summary.json, or those in results/). A model counts once, by the hash of its weights. Its
similarity is monotonic where no layer steps away from the last one; its exits succeed where its diagnosis says
"exits and is near". The last line is one JSON object.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from leap.evidence.bounds import ENOUGH_EXITS, NEAR

SUCCESS = "exits and is near"


@dataclass(frozen=True)
class Model:
    """One checkpoint: where it was read, whether similarity is monotonic, and what its exits do."""

    name: str
    monotonic: bool
    outcome: str


def models(paths: Sequence[Path]) -> list[Model]:
    """Collect the checkpoints of some summaries; files of another form are passed over."""
    found: dict[str, Model] = {}
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        variants = content.get("variants") if isinstance(content, dict) else None
        for name, variant in (variants or {}).items():
            for seed, one in (variant.get("seeds") or {}).items():
                if one.get("layers") and one.get("exit"):
                    model = Model(f"{path.parent.name} {name}-{seed}", is_monotonic(one), outcome(one))
                    found.setdefault(one.get("checkpoint") or model.name, model)
    return list(found.values())


def is_monotonic(one: dict[str, Any]) -> bool:
    """Say whether no layer steps away from the last one, as the diagnosis does."""
    values = [row["similarity_to_final"] for row in one["layers"]]
    return all(after >= before - 1e-6 for before, after in pairwise(values))


def outcome(one: dict[str, Any]) -> str:
    """Say in the diagnosis's words what a model's exits do."""
    if one["exit"]["rate"] <= ENOUGH_EXITS:
        return "never exits"
    return SUCCESS if one["exit"]["similarity"] >= NEAR else "exits and is far"


def table(found: Sequence[Model]) -> dict[str, dict[str, int]]:
    """Count outcomes of monotonic and of other models."""
    names = (SUCCESS, "exits and is far", "never exits")
    counts: dict[str, dict[str, int]] = {}
    for kind, monotonic in (("monotonic", True), ("not monotonic", False)):
        outcomes = [model.outcome for model in found if model.monotonic is monotonic]
        counts[kind] = {name: outcomes.count(name) for name in names}
    return counts


def lines(found: Sequence[Model]) -> Iterator[str]:
    """A line a model, then the counts."""
    for model in found:
        yield f"{'monotonic    ' if model.monotonic else 'not monotonic'}  {model.outcome:<17}  {model.name}"
    for kind, counts in table(found).items():
        yield f"{kind}: {', '.join(f'{count} {name}' for name, count in counts.items())}"


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("summaries", type=Path, nargs="+")
    found = models(parser.parse_args().summaries)
    sys.stdout.write("\n".join(lines(found)) + "\n")
    sys.stdout.write(json.dumps({"models": len(found), **table(found)}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
