"""All evidence and verdicts as one mapping: reports/summary.json."""

from collections.abc import Mapping
from typing import Any

from leap.core.settings import Settings
from leap.evidence.bounds import recommend
from leap.evidence.evidence_file import HEAD, Evidence
from leap.evidence.frontier import frontier
from leap.evidence.spread import spread
from leap.gate.metrics import query_row
from leap.gate.verdict import role
from leap.report.average import average

Checkpoint = tuple[str, int]
# What of diagnose.json and of latency.json the report shows.
EXAMINED = (
    *("depth", "n", "exit_rule", "monotonic", "layers", "exit", "oracle", "truncation", "query_layer", "start"),
    *("adaptive", "by_length", "strategies", "sweep", "recommended", "teacher", "contraction_median"),
)
TIMED = ("speed_up", "speed_up_ci95", "floor", "protocol")


def summarise(
    settings: Settings,
    evidence: Mapping[Checkpoint, Evidence],
    verdicts: Mapping[Checkpoint, dict[str, Any]],
    run: dict[str, Any],
    trainings: Mapping[Checkpoint, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the content of reports/summary.json.

    Args:
        evidence: what there is, by variant and seed; missing evidence becomes null, never a number.
        verdicts: what there is; one of another checkpoint than the evidence's is left out.
        run: what else the report says of this run: data counts, teacher (see `leap.report.run_facts`).
        trainings: the records of the trainings that there are.
    """
    variants = {}
    for name, variant in settings.variants.items():
        seeds = {
            str(seed): {
                **one_checkpoint(evidence[name, seed], verdicts.get((name, seed)), settings),
                "training": _training((trainings or {}).get((name, seed))),
            }
            for seed in settings.seeds
        }
        variants[name] = {
            "description": variant.description,
            "role": role(settings, name),
            **over_seeds(seeds),
            "seeds_measured": sum(seed["checkpoint"] is not None for seed in seeds.values()),
            "spread": spread(list(seeds.values())),
            "seeds": seeds,
        }
    return {
        "profile": settings.profile,
        "hardware": hardware(evidence),
        "primary_set": settings.evaluation.primary_set,
        "run": run,
        "frontier": frontier(evidence, settings.evaluation.primary_set),
        "variants": variants,
    }


def one_checkpoint(evidence: Evidence, verdict: dict[str, Any] | None, settings: Settings) -> dict[str, Any]:
    diagnose, latency = evidence.diagnose or {}, evidence.latency or {}
    pairs = {name: body(evidence.sts.get(name)) for name in settings.similarity}
    primary = pairs[settings.evaluation.primary_set]
    at_query_layer = query_row(latency) or {}
    if verdict is not None and verdict["checkpoint"] != evidence.checkpoint:
        verdict = None
    return {
        "checkpoint": evidence.checkpoint,
        "diagnosis": diagnose.get("verdict"),
        **{key: diagnose.get(key) for key in EXAMINED},
        "rivals": (verdict or {}).get("rivals"),
        "sts": {**(primary or {"spearman_full": None, "spearman_exit": None}), "sets": pairs},
        "retrieval": {name: body(evidence.retrieval.get(name)) for name in settings.retrieval},
        "gate": verdict and {key: verdict[key] for key in ("passed", "checks", "primary_metric")},
        "latency": latency.get("rows"),
        "latency_by_layer": latency.get("by_layer"),
        "latency_by_threshold": latency.get("by_threshold"),
        **{key: latency.get(key) for key in TIMED},
        "query_speed_up": at_query_layer.get("speed_up"),
        "query_speed_up_ci95": at_query_layer.get("speed_up_ci95"),
    }


def _training(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return record and {key: record.get(key) for key in ("steps", "seconds", "sentences_per_second", "loss")}


def over_seeds(seeds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the seeds that were measured; a verdict passes where every seed's does."""
    if len(seeds) == 1:
        return next(iter(seeds.values()))
    measured = [seed for seed in seeds.values() if seed["checkpoint"] is not None]
    mean: dict[str, Any] = average([{**seed, "gate": None} for seed in measured or seeds.values()])
    # Not the mean of the seeds' rules: the rule that is best by the mean of their figures.
    mean["recommended"] = recommend(mean["sweep"] or [])
    verdicts = [seed["gate"] for seed in seeds.values()]
    if None in verdicts:
        return {**mean, "gate": None}
    # A check's reason speaks of one checkpoint, so the mean verdict keeps every seed's, each by its name.
    checks = [
        {**check, "name": f"{check['name']} (seed {seed})"}
        for seed, content in seeds.items()
        for check in content["gate"]["checks"]
    ]
    primary = average([verdict["primary_metric"] for verdict in verdicts])
    passed = all(verdict["passed"] for verdict in verdicts)
    return {**mean, "gate": {"passed": passed, "checks": checks, "primary_metric": primary}}


def body(content: dict[str, Any] | None) -> dict[str, Any] | None:
    return content and {key: value for key, value in content.items() if key not in HEAD}


def hardware(evidence: Mapping[Checkpoint, Evidence]) -> dict[str, Any] | None:
    """Say where the latency was measured, or the rest where it was not; null where there is no evidence."""
    for kind in ("latency", "diagnose"):
        for item in evidence.values():
            content = getattr(item, kind)
            if content is not None:
                return dict(content["environment"])
    return None


def dig(content: Any, *path: str) -> Any:
    """Return the value at a path of keys, or null where the path ends early."""
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def mean_ndcg(variant: dict[str, Any], path: str) -> float | None:
    """Return mean nDCG@10 of the collections; null where one is missing, for the rest would mislead."""
    scores = [dig(item, f"ndcg_at_10_{path}") for item in variant["retrieval"].values()]
    return None if None in scores or not scores else sum(scores) / len(scores)
