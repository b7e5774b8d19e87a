"""The paper's tables by layer: similarity, exits, neighbours, contraction."""

from itertools import pairwise

from leap.report.differences import QUALITY
from leap.report.paper_table import Row, Sources, Table, layer_label, paper_table


def layer_comparison(sources: Sources) -> Table:
    """Similarity and exits of baseline and LEAP by layer."""

    def ours(row: Row) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name in ("baseline", "leap"):
            layer = sources.layer(name, row["layer"])
            found[f"{name}_similarity"] = layer.get("similarity_to_final")
            found[f"{name}_exit_rate"] = layer.get("exit_rate_near_final")
        return found

    columns: dict[str, int | None] = dict.fromkeys(
        ("baseline_similarity", "baseline_exit_rate", "leap_similarity", "leap_exit_rate"), 3
    )
    return paper_table(sources, "layer_comparison", columns, layer_label, ours, sources.apart(QUALITY))


def layer_analysis(sources: Sources) -> Table:
    """LEAP by layer."""

    def ours(row: Row) -> dict[str, float | None]:
        layer = sources.layer("leap", row["layer"])
        return {
            "similarity": layer.get("similarity_to_final"),
            "exit_rate": layer.get("exit_rate_near_final"),
            "nn_at_10": layer.get("nn_at_10"),
        }

    columns: dict[str, int | None] = {"similarity": 3, "exit_rate": 3, "nn_at_10": 2}
    return paper_table(sources, "layer_analysis", columns, layer_label, ours, sources.apart(QUALITY))


def exit_distribution(sources: Sources) -> Table:
    """Where texts leave by the oracle rule."""
    rates = [row["exit_rate_near_final"] for row in sources.variant("leap").get("layers") or []]
    shares = dict(enumerate((after - before for before, after in pairwise([0.0, *rates])), 1))
    return paper_table(
        sources,
        "exit_distribution",
        {"share": 3},
        layer_label,
        lambda row: {"share": shares.get(row["layer"])},
        sources.apart(QUALITY),
    )


def contraction(sources: Sources) -> Table:
    """Similarity at a few layers, the table that the paper names contraction."""

    def ours(row: Row) -> dict[str, float | None]:
        name = str(row["model"])
        found: dict[str, float | None] = {
            f"layer_{number}": sources.layer(name, number).get("similarity_to_final") for number in (6, 7, 9, 12)
        }
        return {**found, "exit_by_7": sources.layer(name, 7).get("exit_rate_near_final")}

    columns: dict[str, int | None] = dict.fromkeys(("layer_6", "layer_7", "layer_9", "layer_12", "exit_by_7"), 3)
    return paper_table(
        sources,
        "contraction",
        columns,
        lambda row: str(row["model"]),
        ours,
        sources.apart(QUALITY),
        note="The paper gives the baseline's only as below 0.90.",
    )


def nn_failure(sources: Sources) -> Table:
    """Neighbours lost by layer."""

    def ours(row: Row) -> dict[str, float | None]:
        layer = sources.layer("leap", row["layer"])
        return {
            "nn_at_10": layer.get("nn_at_10"),
            "below_50": layer.get("nn_fail_50"),
            "below_30": layer.get("nn_fail_30"),
        }

    columns: dict[str, int | None] = {"nn_at_10": 2, "below_50": 3, "below_30": 3}
    return paper_table(sources, "nn_failure", columns, layer_label, ours, sources.apart(QUALITY))
