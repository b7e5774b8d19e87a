"""Several trainings of one variant as one figure: mean, sample deviation, range and interval of the mean."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

# The figures of one checkpoint's summary whose spread is shown, by their path in it.
FIGURES = (
    *(("sts", name) for name in ("spearman_full", "spearman_exit", "spearman_gain")),
    *(("exit", name) for name in ("rate", "expected_layers", "similarity", "nn_at_10")),
)


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, std and the 95 % interval of the mean by Student's t (null for one value), low, high and n."""
    center, n, std, interval = mean(values), len(values), None, None
    if n > 1:
        from scipy.special import stdtrit

        std = stdev(values)
        half = float(stdtrit(n - 1, 0.975)) * std / sqrt(n)
        interval = [center - half, center + half]
    return {"mean": center, "std": std, "ci95": interval, "low": min(values), "high": max(values), "n": n}


def spread(seeds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the spread of every main figure over the seeds of a variant that have it, of collections too.

    `seeds` are their summaries (reports/summary.json, `variants.<name>.seeds.<seed>`).
    """
    names = dict.fromkeys(name for seed in seeds for name in seed.get("retrieval") or {})
    modes = ("full", "exit")
    paths = [*FIGURES, *(("retrieval", name, f"ndcg_at_10_{mode}") for name in names for mode in modes)]
    known = {".".join(path): [value for seed in seeds if (value := _at(seed, path)) is not None] for path in paths}
    return {name: over_seeds(values) for name, values in known.items() if values}


def _at(content: Any, path: Sequence[str]) -> float | None:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return float(content) if isinstance(content, int | float) else None
