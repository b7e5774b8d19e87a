"""The paper's BEIR tables."""

from collections.abc import Callable

from leap.report.differences import RETRIEVAL
from leap.report.paper_table import Row, Sources, Table, change, number, paper_table
from leap.report.summary import dig


def beir(sources: Sources) -> Table:
    """nDCG@10: baseline, LEAP full, LEAP exited."""

    def ours(row: Row) -> dict[str, float | None]:
        base, leap = (_ndcg(sources, name, row["set"]) for name in ("baseline", "leap"))
        return {
            "baseline_full": base("10_full"),
            "leap_full": leap("10_full"),
            "leap_exit": leap("10_exit"),
            "change_by_leap": change(base("10_full"), leap("10_full")),
            "change_by_exit": change(leap("10_full"), leap("10_exit")),
        }

    columns: dict[str, int | None] = dict.fromkeys(
        ("baseline_full", "leap_full", "leap_exit", "change_by_leap", "change_by_exit"), 3
    )
    return paper_table(
        sources,
        "beir",
        columns,
        lambda row: str(row["set"]),
        ours,
        sources.apart(RETRIEVAL),
        note="The average is over the paper's five sets and missing where one is; other collections of this "
        "run are under Similarity and retrieval sets.",
    )


def beir_at_5(sources: Sources) -> Table:
    """nDCG at 5 and 10, full depth."""
    return _shallow(sources, "beir_at_5", (5, 10))


def beir_at_1_and_3(sources: Sources) -> Table:
    """nDCG at 1 and 3, full depth."""
    return _shallow(sources, "beir_at_1_and_3", (1, 3))


def _shallow(sources: Sources, key: str, cutoffs: tuple[int, int]) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        base, leap = (_ndcg(sources, name, row["set"]) for name in ("baseline", "leap"))
        found: dict[str, float | None] = {}
        for at in cutoffs:
            one, two = base(f"{at}_full"), leap(f"{at}_full")
            found |= {f"baseline_at_{at}": one, f"leap_at_{at}": two, f"change_at_{at}": change(one, two)}
        return found

    columns: dict[str, int | None] = {
        f"{name}_at_{at}": 3 for at in cutoffs for name in ("baseline", "leap", "change")
    }
    return paper_table(sources, key, columns, lambda row: str(row["set"]), ours, sources.apart(RETRIEVAL))


def _ndcg(sources: Sources, variant: str, name: str) -> Callable[[str], float | None]:
    """nDCG of a set, or the average over the paper's five where all are there."""
    sets = sources.variant(variant).get("retrieval") or {}

    def at(path: str) -> float | None:
        if name != "average":
            return number(dig(sets.get(name), f"ndcg_at_{path}"))
        names = [str(row["set"]) for row in sources.paper.tables["beir"].rows if row["set"] != "average"]
        values = [number(dig(sets.get(each), f"ndcg_at_{path}")) for each in names]
        found = [value for value in values if value is not None]
        return sum(found) / len(found) if len(found) == len(values) else None

    return at
