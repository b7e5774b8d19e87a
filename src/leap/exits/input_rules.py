"""Exit rules of queries and documents: what leap.json says in addition to the exit rule of `encode`.

    {"exit": {...}, "query": {"layer": 3}, "document": "full"}

Each of the two is "full" (all layers), "calibrated" (the tested thresholds), {"layer": l} (all leave there), or an
exit rule {"threshold": theta, "min_layer": l, "patience": k}; one that is left out leaves as `encode` does.
"""

from typing import Any

from leap.exits.rules import ExitRule

INPUT_TYPES = ("query", "document")


def input_rules(content: dict[str, Any], depth: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of `LeapEncoder.encode` that make queries and documents leave as leap.json says.

    Raises:
        ValueError: a rule is none of the forms above, or does not fit the depth.
    """
    return {kind: _arguments(kind, content[kind], depth) for kind in INPUT_TYPES if kind in content}


def _arguments(kind: str, rule: Any, depth: int) -> dict[str, Any]:
    if rule in ("full", "calibrated"):
        return {"strategy": rule}
    if isinstance(rule, dict) and set(rule) == {"layer"}:
        layer = rule["layer"]
        if type(layer) is not int or not 1 <= layer <= depth:
            raise ValueError(f"{kind}: layer {layer!r} is not a layer of this model: 1 to {depth}")
        return {"strategy": "fixed", "layer": layer}
    if isinstance(rule, dict) and set(rule) == {"threshold", "min_layer", "patience"}:
        ExitRule(**rule).check_depth(depth)
        return {"strategy": "converged", **rule}
    raise ValueError(f"{kind}: {rule!r} is no rule: full, calibrated, a layer, or theta, l_min and k")
