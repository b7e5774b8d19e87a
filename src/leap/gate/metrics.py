"""Metric paths of the gate, resolved on the evidence; docs/architecture.md lists them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from leap.core.environment import hardware
from leap.core.settings import Settings
from leap.evidence.evidence_file import Evidence

# The rivals of the comparison metrics: which setting of the gate names the variant.
RIVALS = {"drop_vs_baseline": "baseline", "adaptive_gain_vs_fixed_depth": "fixed_depth"}
# The figure that comparisons are made of, by the metric's first part: without and with exits.
QUALITY = {"sts": ("spearman_full", "spearman_exit"), "retrieval": ("ndcg_at_10_full", "ndcg_at_10_exit")}

# What a rule that computes all layers for all but queries cannot show.
OF_ENCODE = ("exit.rate", "latency.speed_up")
NO_START = "student.start is not {kind: teacher}: there is no model before"


@dataclass(frozen=True)
class Measured:
    metric: str
    # null: the evidence has no such number
    value: float | None
    n: int | None = None
    # 95 %, [low, high]
    interval: tuple[float, float] | None = None
    # Why there is nothing to judge, for example a variant compared with itself.
    not_applicable: str | None = None
    # Why the number cannot be had or does not count.
    fault: str | None = None
    # What a person should know in addition to the number.
    note: str | None = None


# The evidence of the variants to compare with, of the same seed, by their role in the settings; null where the
# settings name none.
Rivals = Mapping[str, Evidence | None]


def expand(metric: str, evidence: Evidence, named: Iterable[str] = ()) -> list[str]:
    """Return the metric for every data set that its star stands for; a metric without a star is itself.

    `named` are metrics that other checks judge, which a star leaves to them.
    """
    root, star, rest = metric.partition(".*")
    if not star:
        return [metric]
    names = sorted({"retrieval": evidence.retrieval, "sts": evidence.sts}.get(root, {}))
    expanded = [f"{root}.{name}{rest}" for name in names]
    # A star that stands for nothing stays as it is: it resolves to nothing, and that fails.
    return [path for path in expanded if path not in set(named)] if expanded else [metric]


def scope(metric: str, primary_set: str) -> str:
    root, *rest = metric.split(".")
    if root == "layers":
        return f"layer {rest[0]}"
    if root in QUALITY:
        return f"data set {rest[0] if len(rest) > 1 else primary_set}"
    places = {
        "exit": "realised exit layers",
        "oracle": "the oracle's exit layers",
        "truncation": "the expected layer, fixed",
        "latency": "target hardware",
        "start": "full depth against the model before",
    }
    return places.get(root, root)


def measure(metric: str, evidence: Evidence, primary_set: str, rivals: Rivals) -> Measured:
    """Look a metric without a star up, or compute it where it compares two numbers.

    Args:
        primary_set: the pair set that `sts.<key>` speaks of.
        rivals: for `*.drop_vs_baseline` and `*.adaptive_gain_vs_fixed_depth`.
    """
    measured = _look_up(metric, evidence, primary_set, rivals)
    layer = query_layer_alone(evidence)
    if metric in OF_ENCODE and layer is not None:
        why = f"encode computes all layers by its rule, and queries leave at layer {layer}: their checks judge it"
        return replace(measured, not_applicable=why)
    return measured


def query_layer_alone(evidence: Evidence) -> int | None:
    """The layer of queries where only they leave early: exit.min_layer is the depth, exit.query_layer is not."""
    diagnose = evidence.diagnose or {}
    depth, layer = diagnose.get("depth"), diagnose.get("query_layer")
    least = (diagnose.get("exit_rule") or {}).get("min_layer")
    if not isinstance(depth, int) or not isinstance(layer, int) or not isinstance(least, int):
        return None
    return layer if least >= depth > layer else None


def _look_up(metric: str, evidence: Evidence, primary_set: str, rivals: Rivals) -> Measured:
    root, *rest = metric.split(".")
    if root in QUALITY:
        name, key = (primary_set, rest[0]) if len(rest) == 1 else (rest[0], rest[-1])
        return _of_data_set(metric, root, name, key, evidence, rivals)
    if root == "latency":
        return _of_latency(metric, rest[0], evidence.latency or {})
    diagnose = evidence.diagnose or {}
    if root == "start" and "start" in diagnose and diagnose["start"] is None:
        return Measured(metric, None, not_applicable=NO_START)
    if root == "layers":
        rows = [row for row in diagnose.get("layers") or [] if str(row.get("layer")) == rest[0]]
        block: Any = rows[0] if rows else {}
    elif root == "diagnose":
        block = diagnose
    else:
        block = diagnose.get(root)
    block = block if isinstance(block, dict) else {}
    key = rest[-1]
    return Measured(metric, number(block.get(key)), _count(diagnose, "n"), _pair(block.get(f"{key}_ci95")))


def _of_latency(metric: str, key: str, latency: dict[str, Any]) -> Measured:
    n = _count(latency.get("protocol", {}), "iterations")
    if key != "query_speed_up":
        return Measured(metric, number(latency.get(key)), n, _pair(latency.get(f"{key}_ci95")))
    layer = latency.get("query_layer")
    if "query_layer" in latency and layer is None:
        return Measured(
            metric, None, n, not_applicable="queries leave as all else does: latency.speed_up is theirs"
        )
    row = query_row(latency) or {}
    return Measured(metric, number(row.get("speed_up")), n, _pair(row.get("speed_up_ci95")), note=f"layer {layer}")


def query_row(latency: Mapping[str, Any]) -> dict[str, Any] | None:
    """The times at the layer where queries leave, heads included; null where they leave as all else does."""
    layer, rows = latency.get("query_layer"), latency.get("by_layer") or []
    return next((row for row in rows if layer is not None and row["layer"] == layer), None)


def data_behind(metric: str, evidence: Evidence, primary_set: str) -> dict[str, str]:
    """List what a metric was measured on, data by their hashes: two values compare only if this is equal."""
    root, *rest = metric.split(".")
    if root == "latency":
        latency = evidence.latency or {}
        return {**latency.get("data", {}), "hardware": hardware(latency.get("environment", {}))}
    sets = {"sts": evidence.sts, "retrieval": evidence.retrieval}.get(root)
    source = evidence.diagnose if sets is None else sets.get(rest[0] if len(rest) > 1 else primary_set)
    return dict((source or {}).get("data", {}))


def main_figures(evidence: Evidence, settings: Settings, passed: bool) -> dict[str, Any]:
    """Return the row of a checkpoint in `dvc metrics show`; a figure that there is not is null."""

    def of(metric: str) -> float | None:
        return measure(metric, evidence, settings.evaluation.primary_set, {}).value

    retrieval = {
        mode: [number(collection.get(f"ndcg_at_10_{mode}")) for collection in evidence.retrieval.values()]
        for mode in ("full", "query_exit", "exit")
    }
    # The mean of all collections or none: a mean of some would mislead.
    ndcg = {
        mode: None if not values or None in values else sum(filter(None, values)) / len(values)
        for mode, values in retrieval.items()
    }
    return {
        "layers": of("exit.expected_layers"),
        "exit_rate": of("exit.rate"),
        "similarity": of("exit.similarity"),
        "nn_at_10": of("exit.nn_at_10"),
        "sts_full": of("sts.spearman_full"),
        "sts_exit": of("sts.spearman_exit"),
        "ndcg_full": ndcg["full"],
        "ndcg_query": ndcg["query_exit"],
        "ndcg_exit": ndcg["exit"],
        "speed_up": of("latency.speed_up"),
        "query_speed_up": of("latency.query_speed_up"),
        "passed": passed,
    }


def relative_drop(value: float | None, reference: float | None) -> float | None:
    """Return 1 - value / reference; negative is a gain. Null where one is missing or the reference not > 0."""
    if value is None or reference is None or not reference > 0:
        return None
    return 1 - value / reference


def number(value: Any) -> float | None:
    """Return a finite number as float, anything else as null: text, null, NaN, infinity, a list."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _of_data_set(metric: str, root: str, name: str, key: str, evidence: Evidence, rivals: Rivals) -> Measured:
    content = _set(root, name, evidence)
    n = _count(content, "n" if root == "sts" else "n_queries")
    if key in RIVALS:
        return _against(metric, root, name, key, evidence, rivals, n)
    if key in ("old_index_drop", "drop_vs_start"):
        return _against_start(metric, root, key, content, evidence, n)
    if key == "drop_vs_full":
        full, exited = (number(content.get(figure)) for figure in QUALITY[root])
        return Measured(metric, relative_drop(exited, full), n)
    interval = {"spearman_exit": "ci95", "spearman_full": "ci95_full"}.get(key, f"{key}_ci95")
    return Measured(metric, number(content.get(key)), n, _pair(content.get(interval)))


def _against_start(
    metric: str, root: str, key: str, content: dict[str, Any], evidence: Evidence, n: int | None
) -> Measured:
    """Measure the loss against the model before: by full depth, or by early queries in that model's index."""
    diagnose = evidence.diagnose or {}
    if "start" in diagnose and diagnose["start"] is None:
        return Measured(metric, None, n, not_applicable=NO_START)
    old = content.get("teacher_index") or {}
    before = number(content.get("spearman_teacher") if root == "sts" else old.get("ndcg_at_10_teacher"))
    own = old.get("ndcg_at_10_query_exit") if key == "old_index_drop" else content.get(QUALITY[root][0])
    return Measured(metric, relative_drop(number(own), before), n)


def _against(
    metric: str, root: str, name: str, key: str, evidence: Evidence, rivals: Rivals, n: int | None
) -> Measured:
    """The exits' quality against a rival's full depth: the relative drop, or the absolute gain."""
    role = RIVALS[key]
    rival = rivals.get(role)
    if rival is None and role in rivals:
        return Measured(metric, None, n, not_applicable=f"gate.{role} is null: there is nothing to compare with")
    if rival is None:
        return Measured(metric, None, n, fault=f"there is no evidence of gate.{role}")
    if rival.variant == evidence.variant:
        return Measured(metric, None, n, not_applicable=f"{rival.variant} is gate.{role} itself")
    ours, theirs = _set(root, name, evidence), _set(root, name, rival)
    if ours.get("data") != theirs.get("data"):
        return Measured(metric, None, n, fault=f"{rival.variant} was measured on other data")
    full, exit_ = QUALITY[root]
    exited, reference = number(ours.get(exit_)), number(theirs.get(full))
    if role == "baseline":
        return Measured(metric, relative_drop(exited, reference), n)
    gain = None if exited is None or reference is None else exited - reference
    return Measured(metric, gain, n, note=_depths(evidence, rival))


def _depths(evidence: Evidence, rival: Evidence) -> str | None:
    exits, depth = (evidence.diagnose or {}).get("exit"), (rival.diagnose or {}).get("depth")
    expected = number(exits.get("expected_layers")) if isinstance(exits, dict) else None
    if expected is None or depth is None:
        return None
    return f"{expected:.2f} layers on average against {rival.variant}'s {depth}"


def _set(root: str, name: str, evidence: Evidence) -> dict[str, Any]:
    return (evidence.sts if root == "sts" else evidence.retrieval).get(name, {})


def _pair(interval: Any) -> tuple[float, float] | None:
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return None
    # An interval that is there but not finite must not pass for "no interval": NaN fails every bound.
    low, high = (math.nan if number(bound) is None else float(bound) for bound in interval)
    return low, high


def _count(block: dict[str, Any], key: str) -> int | None:
    count = block.get(key)
    return count if isinstance(count, int) and not isinstance(count, bool) else None
