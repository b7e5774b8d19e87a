"""The spread over seeds: mean, sample standard deviation and range of a variant's main figures."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

# The figures of one checkpoint's summary whose spread is shown, by their path in it.
FIGURES = (
    ("sts", "spearman_full"),
    ("sts", "spearman_exit"),
    ("sts", "spearman_gain"),
    ("exit", "rate"),
    ("exit", "expected_layers"),
    ("exit", "similarity"),
    ("exit", "nn_at_10"),
)


def spread(seeds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the spread of every main figure over a variant's seeds.

    Args:
        seeds: each seed's summary (reports/summary.json, `variants.<name>.seeds.<seed>`).

    Returns:
        "exit.rate" and so on to {mean, std (null for one seed), low, high, n}, over the seeds that have the
        figure; `retrieval.<set>.ndcg_at_10_full` and `_exit` for every collection.
    """
    names = dict.fromkeys(name for seed in seeds for name in seed.get("retrieval") or {})
    modes = ("full", "exit")
    paths = [*FIGURES, *(("retrieval", name, f"ndcg_at_10_{mode}") for name in names for mode in modes)]
    figures_over_seeds = {}
    for path in paths:
        values = [value for seed in seeds if (value := _at(seed, path)) is not None]
        if values:
            figures_over_seeds[".".join(path)] = {
                "mean": mean(values),
                "std": stdev(values) if len(values) > 1 else None,
                "low": min(values),
                "high": max(values),
                "n": len(values),
            }
    return figures_over_seeds


def _at(content: Any, path: Sequence[str]) -> float | None:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return float(content) if isinstance(content, int | float) else None
