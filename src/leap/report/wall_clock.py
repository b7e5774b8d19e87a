"""The time of an exit strategy, from the latency stage: measured where timed, else interpolated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# What the latency stage calls the deployed rule.
PATHS = {"converged": "exit"}


def sentence_rows(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Select the rows of sentences as they are, at the smallest batch: not those of a fixed number of tokens."""
    whole = [row for row in rows or [] if row.get("length", "sentences") == "sentences"]
    smallest = min((row["batch"] for row in whole), default=0)
    return [row for row in whole if row["batch"] == smallest]


def wall_clock(variant: dict[str, Any], strategy: dict[str, Any]) -> str:
    """Say the median time of a sentence at the smallest batch size.

    Returns:
        "4.2 ms" where the strategy itself was timed; "about 4.2 ms" between the times of single layers; else "-".
    """
    timed = {row["path"]: row for row in sentence_rows(variant["latency"])}
    own = timed.get(PATHS.get(strategy["strategy"], strategy["strategy"]))
    layers = variant.get("latency_by_layer")
    if not strategy["deployable"] or not (own or layers):
        return "-"
    if own is not None:
        return f"{own['ms_p50'] / own['batch']:.2f} ms"
    depths, times = zip(*((row["layer"], row["ms_p50"] / row["batch"]) for row in layers or []), strict=True)
    return f"about {np.interp(strategy['expected_layers'], depths, times):.2f} ms"
