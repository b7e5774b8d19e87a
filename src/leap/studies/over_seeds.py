"""Several trainings of one variant as one figure: mean, spread and interval."""

import math
from collections.abc import Sequence

FIGURES = (
    "spearman_full",
    "spearman_exit",
    "spearman_truncated",
    "expected_layers",
    "layer_reduction",
    "exit_rate",
    "similarity",
    "nn_at_10",
)


def over_seeds(values: Sequence[float]) -> dict[str, float | list[float] | int | None]:
    """Return mean, sample deviation and the 95 % interval of the mean by Student's t; null for one seed."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return {"mean": mean, "sd": None, "ci95": None, "seeds": 1}
    from scipy.special import stdtrit

    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(stdtrit(count - 1, 0.975)) * sd / math.sqrt(count)
    return {"mean": mean, "sd": sd, "ci95": [mean - half, mean + half], "seeds": count}
