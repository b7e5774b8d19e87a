"""Exit rules of queries and documents: what leap.json says in addition to the exit rule of `encode`.

    {"exit": {...}, "query": {"layer": 3}, "document": "full"}

Each of the two is "full" (all layers), "calibrated" (the tested thresholds), {"layer": l} (all leave there), or an
exit rule {"threshold": theta, "min_layer": l, "patience": k}; one that is left out leaves as `encode` does.
"""

import json
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import CHANGED, has_wrong_checksum
from leap.exits.rules import ExitRule

INPUT_TYPES = ("query", "document")
# The paper's values (Appendix L), for a folder that says nothing itself.
PAPER_RULE = ExitRule(threshold=0.95, min_layer=6, patience=1)


def read_rules(folder: Path, depth: int) -> tuple[ExitRule, dict[str, dict[str, Any]]]:
    """Read the folder's leap.json; without it the exit rule is the paper's, made to fit the depth.

    Returns:
        The exit rule of `encode`, and the arguments of `encode` for queries and documents (`input_rules`).

    Raises:
        UserError: leap.json is not well-formed, or a rule does not fit the depth.
    """
    path = folder / "leap.json"
    if not path.exists():
        return ExitRule(PAPER_RULE.threshold, min(PAPER_RULE.min_layer, depth), PAPER_RULE.patience), {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("expected an object with the key `exit`")
        if has_wrong_checksum(content):
            raise UserError(f"{path} {CHANGED}: if you set another rule on purpose, take its `checksum` out")
        unknown = sorted(content.keys() - {"exit", *INPUT_TYPES, "checksum"})
        if unknown:
            raise ValueError(f"unknown key {', '.join(unknown)}: it may have exit, query and document")
        rule = _exit_rule("exit", content.get("exit"), depth)
        others = input_rules(content, depth)
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} does not hold an exit rule for {depth} layers ({error}): correct it") from None
    return rule, others


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
    if isinstance(rule, dict) and "threshold" in rule:
        return {"strategy": "converged", **vars(_exit_rule(kind, rule, depth))}
    raise ValueError(f"{kind}: {rule!r} is no rule: full, calibrated, a layer, or theta, l_min and k")


def _exit_rule(name: str, rule: Any, depth: int) -> ExitRule:
    if not isinstance(rule, dict) or set(rule) != {"threshold", "min_layer", "patience"}:
        raise ValueError(f"{name}: {rule!r} is no exit rule: expected threshold, min_layer and patience")
    checked = ExitRule(**rule)
    try:
        checked.check_depth(depth)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return checked
