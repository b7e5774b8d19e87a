"""What an exit strategy costs in time, from the latency stage: measured where timed, else estimated."""

from collections.abc import Sequence
from typing import Any

# What the latency stage calls the deployed rule.
PATHS = {"converged": "exit"}


def sentence_rows(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The rows of sentences as they are, without those of rows of a fixed number of tokens."""
    return [row for row in rows or [] if row.get("length", "sentences") == "sentences"]


def wall_clock(rows: Sequence[dict[str, Any]] | None, strategy: dict[str, Any]) -> str:
    """The median time of a text at the smallest batch size, in words.

    Args:
        rows: of latency.json; null or empty where it was not measured. Those of whole sentences are taken.
        strategy: a row of `strategies` in diagnose.json.

    Returns:
        "4.2 ms" where the strategy itself was timed; "about 4.2 ms" for a watched pass cut at its expected
        depth, on which it would spend as much a layer; "-" for what cannot be deployed; else "missing".
    """
    if not strategy["deployable"]:
        return "-"
    whole = sentence_rows(rows)
    smallest = min((row["batch"] for row in whole), default=0)
    timed = {row["path"]: row for row in whole if row["batch"] == smallest}
    own = timed.get(PATHS.get(strategy["strategy"], strategy["strategy"]))
    if own is not None:
        return f"{own['ms_p50'] / smallest:.2f} ms"
    watched = timed.get("monitored")
    if watched is None:
        return "missing"
    share = strategy["expected_layers"] / watched["expected_layers"]
    return f"about {watched['ms_p50'] / smallest * share:.2f} ms"
