"""The bounds of the paper's deployment checklist: the gate's three, for words and recommendations."""

from collections.abc import Mapping, Sequence
from typing import Any

# More sentences than this must leave before the last layer.
ENOUGH_EXITS = 0.5
# Mean cosine of the exited mixture to full depth.
NEAR = 0.94
# NN@10 of the exited mixture.
ENOUGH_NEIGHBOURS = 0.80


def checklist(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Hold the exited mixture's `rate`, `similarity` and `nn_at_10` against the three: a row each."""
    rows = (
        ("share that leaves early", "rate", ENOUGH_EXITS, figures["rate"] > ENOUGH_EXITS),
        ("similarity at exit", "similarity", NEAR, figures["similarity"] >= NEAR),
        ("neighbours that stay (NN@10)", "nn_at_10", ENOUGH_NEIGHBOURS, figures["nn_at_10"] >= ENOUGH_NEIGHBOURS),
    )
    return [
        {
            "name": name,
            "value": figures[key],
            "bound": f"{'>' if key == 'rate' else '>='} {bound:g}",
            "passed": bool(passed),
        }
        for name, key, bound, passed in rows
    ]


def passes(figures: Mapping[str, Any]) -> bool:
    """Tell whether the exited mixture keeps all three."""
    return all(row["passed"] for row in checklist(figures))


def recommend(points: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Choose, of the sweep's points that pass, the one of fewest expected layers, and of those the nearest.

    Null where none passes.
    """
    passing = [point for point in points if point["passes"]]
    return min(passing, key=lambda point: (point["expected_layers"], -point["similarity"]), default=None)
