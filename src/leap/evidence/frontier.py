"""The frontier: quality against layers and against milliseconds at batch 1, for every way to leave.

full           all layers of a variant; for a student of few layers, the dedicated student of that depth
both_exit      every text leaves at layer l, which is the model truncated there
query_exit     queries leave at layer l and search the index at full depth
teacher_index  the same in the teacher's index, where the spaces agree
rule           each text leaves by the model's own rule
rule_query     queries leave by their own rule, else by the model's, and search the index at full depth
teacher        the teacher's full depth

Quality is the mean of Spearman's correlation on the primary set, with both sentences at the layer, and of nDCG@10
over all collections.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from leap.evidence.evidence_file import Evidence

# A user's query comes alone.
BATCH = 1
INDEXES = {"both_exit": "both_exit", "query_exit": "own_index", "teacher_index": "teacher_index"}
FIGURES = ("layers", "ms_p50", "spearman", "ndcg_at_10", "quality")

Row = dict[str, Any]


def frontier(checkpoints: Mapping[tuple[str, int], Evidence], primary_set: str) -> list[Row]:
    """Tabulate the frontier of some checkpoints.

    Args:
        checkpoints: the evidence by variant and seed; figures of several seeds are means.
        primary_set: the pair set whose Spearman counts.

    Returns:
        Rows of variant, way, layers, ms_p50 (null where batch 1 was not timed), spearman, ndcg_at_10 and quality
        (null where one of both is missing); in the order of variants, ways and layers, the teacher last.
    """
    grouped: dict[tuple[str, str, int], list[Row]] = {}
    for (variant, _), evidence in checkpoints.items():
        for way, layer, row in _rows(evidence, primary_set):
            grouped.setdefault(("" if way == "teacher" else variant, way, layer), []).append(row)
    ordered = [*(key for key in grouped if key[1] != "teacher"), *(key for key in grouped if key[1] == "teacher")]
    return [
        {"variant": key[0] or "teacher", "way": key[1], **{name: _mean(grouped[key], name) for name in FIGURES}}
        for key in ordered
    ]


def _rows(evidence: Evidence, primary_set: str) -> Iterator[tuple[str, int, Row]]:
    """One checkpoint's rows with their way and, for fixed layers, their layer; 0 stands for no fixed layer."""
    sts, collections = evidence.sts.get(primary_set), list(evidence.retrieval.values())
    latency = evidence.latency or {}
    if sts is None:
        return
    depth = len(sts["spearman_by_layer"])
    times = {row["layer"]: row["ms_p50"] for row in latency.get("by_layer") or [] if row["batch"] == BATCH}
    first = (latency.get("protocol") or {}).get("speed_up_at_length")
    paths = {
        row["path"]: row["ms_p50"]
        for row in latency.get("rows") or []
        if row["batch"] == BATCH and row["length"] == first
    }

    def ndcg(mode: str) -> float | None:
        return _all([item.get(f"ndcg_at_10_{mode}") for item in collections])

    yield "full", 0, _row(depth, paths.get("full"), sts["spearman_full"], ndcg("full"))
    for way, index in INDEXES.items():
        for layer in range(1, depth):
            by_layer = _all([_at(item.get("by_query_layer"), layer, index) for item in collections])
            if by_layer is not None or way == "both_exit":
                yield way, layer, _row(layer, times.get(layer), sts["spearman_by_layer"][layer - 1], by_layer)
    expected = (evidence.diagnose or {}).get("exit", {}).get("expected_layers")
    yield "rule", 0, _row(expected, paths.get("exit"), sts["spearman_exit"], ndcg("exit"))
    layers = _all([item.get("expected_layers_queries") for item in collections])
    time, spearman = paths.get("exit"), sts["spearman_exit"]
    if (own_layer := sts.get("query_layer")) is not None:  # queries have a rule of their own: all leave there
        time, spearman = times.get(own_layer), sts["spearman_by_layer"][own_layer - 1]
    yield "rule_query", 0, _row(layers, time, spearman, ndcg("query_exit"))
    teacher = latency.get("teacher") or {}
    if sts.get("spearman_teacher") is not None:
        own = _all([(item.get("teacher_index") or {}).get("ndcg_at_10_teacher") for item in collections])
        time = teacher.get("ms_p50") if teacher.get("batch") == BATCH else None
        yield "teacher", 0, _row(teacher.get("layer"), time, sts["spearman_teacher"], own)


def _row(layers: float | None, time: float | None, spearman: float | None, ndcg: float | None) -> Row:
    quality = _all([spearman, ndcg])
    return {"layers": layers, "ms_p50": time, "spearman": spearman, "ndcg_at_10": ndcg, "quality": quality}


def _at(rows: Sequence[Row] | None, layer: int, key: str) -> float | None:
    return next((row[key] for row in rows or [] if row["layer"] == layer), None)


def _all(values: Sequence[float | None]) -> float | None:
    """The mean of all values, or null: a mean of some would mislead."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """The mean over seeds, or null where one of them has no such figure."""
    return _all([row[name] for row in rows])
