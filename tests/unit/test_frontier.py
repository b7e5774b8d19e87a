from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence

from leap.evidence.evidence_file import Evidence, read_evidence
from leap.evidence.frontier import frontier

SETTINGS = made_settings(seeds=[1, 2])
WAYS = ("full", "both_exit", "query_exit", "teacher_index", "rule", "rule_query", "teacher")


def evidence(seed: int = 1, **changes: Any) -> Evidence:
    write_evidence(Path(), SETTINGS, "leap", seed, **changes)
    return read_evidence("leap", seed, SETTINGS)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def way(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["way"] == name]


def test_every_way_to_leave_by_hand() -> None:
    rows = frontier({("leap", 1): evidence()}, "software")
    assert tuple(dict.fromkeys(row["way"] for row in rows)) == WAYS
    (full,) = way(rows, "full")
    assert full == {
        "variant": "leap", "way": "full", "layers": 4, "ms_p50": 4.0, "spearman": 0.80, "ndcg_at_10": 0.50,
        "quality": pytest.approx(0.65),
    }  # fmt: skip
    exits = way(rows, "query_exit")
    assert [(row["layers"], row["ms_p50"]) for row in exits] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert exits[1]["quality"] == pytest.approx((0.7 + 0.48) / 2)
    assert way(rows, "both_exit")[1]["quality"] == pytest.approx((0.7 + 0.46) / 2)
    assert way(rows, "teacher_index")[1]["ndcg_at_10"] == pytest.approx(0.46)
    (rule,), (queries,) = way(rows, "rule"), way(rows, "rule_query")
    assert (rule["layers"], rule["ms_p50"], rule["ndcg_at_10"]) == (3.1, 3.2, 0.49)
    assert (queries["layers"], queries["ndcg_at_10"], queries["spearman"]) == (3.1, 0.495, 0.79)
    assert rows[-1] == {
        "variant": "teacher", "way": "teacher", "layers": 6, "ms_p50": 6.0, "spearman": 0.82, "ndcg_at_10": 0.52,
        "quality": pytest.approx(0.67),
    }  # fmt: skip


@pytest.mark.parametrize(("layer", "time", "spearman"), [(2, 2.0, 0.7), (4, 4.0, 0.80)])
def test_queries_with_a_layer_of_their_own_have_its_time(layer: int, time: float, spearman: float) -> None:
    changes = {"sts": {"query_layer": layer}, "retrieval": {"expected_layers_queries": layer}}
    (queries,) = way(frontier({("leap", 1): evidence(**changes)}, "software"), "rule_query")
    assert (queries["layers"], queries["ms_p50"], queries["spearman"]) == (layer, time, spearman)
    assert queries["ndcg_at_10"] == 0.495


def test_seeds_are_means_and_a_seed_without_a_figure_leaves_none() -> None:
    other = evidence(2, sts={"spearman_full": 0.90})
    both = {("leap", 1): evidence(), ("leap", 2): other}
    (full,) = way(frontier(both, "software"), "full")
    assert full["spearman"] == pytest.approx(0.85)
    assert other.latency is not None
    other.latency["by_layer"] = []
    assert {row["ms_p50"] for row in way(frontier(both, "software"), "both_exit")} == {None}
    other.retrieval["second"]["by_query_layer"] = None
    exits = way(frontier(both, "software"), "both_exit")
    assert [row["layers"] for row in exits] == [1, 2, 3]
    assert {row["ndcg_at_10"] for row in exits} == {row["quality"] for row in exits} == {None}


def test_other_batches_and_lengths_say_nothing_of_a_query() -> None:
    only = evidence()
    assert only.latency is not None
    for row in [*only.latency["by_layer"], only.latency["teacher"]]:
        row["batch"] = 8
    long = [{**row, "length": 128, "ms_p50": 100.0} for row in only.latency["rows"]]
    only.latency["rows"] = [*only.latency["rows"], *long]
    rows = frontier({("leap", 1): only}, "software")
    assert {row["ms_p50"] for row in way(rows, "query_exit") + way(rows, "teacher")} == {None}
    assert way(rows, "full")[0]["ms_p50"] == 4.0


def test_spaces_that_differ_have_no_way_in_the_teachers_index() -> None:
    only = evidence()
    for item in only.retrieval.values():
        item["by_query_layer"] = [{**row, "teacher_index": None} for row in item["by_query_layer"]]
    assert way(frontier({("leap", 1): only}, "software"), "teacher_index") == []


def test_a_checkpoint_that_was_not_measured_has_no_rows() -> None:
    nothing = Evidence("leap", 1, None, None, None, {}, {}, None)
    assert frontier({("leap", 1): nothing}, "software") == []
