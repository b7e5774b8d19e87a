"""The paper's tables of a whole run: main results, latency, checklist, settings, single figures."""

from statistics import fmean, median

from leap.report.differences import LATENCY, QUALITY
from leap.report.paper_table import Pair, Row, Sources, Table, number, paper_table
from leap.report.study_results import first_seed
from leap.report.summary import dig


def main_results(sources: Sources) -> Table:
    """The paper's main table."""

    def ours(row: Row) -> dict[str, float | None]:
        variant = sources.variant(str(row["model"]))
        way = "exit" if row["model"] == "leap" else "full"
        oracle = dig(variant, "oracle", "expected_layers")
        return {
            "spearman": dig(variant, "sts", f"spearman_{way}"),
            "expected_layers": oracle,
            "layer_reduction": variant["depth"] / oracle if oracle else None,
            "exit_by_7": sources.layer(str(row["model"]), 7).get("exit_rate_near_final"),
            "speed_up": variant.get("speed_up") if row["model"] == "leap" else None,
        }

    columns: dict[str, int | None] = {
        "spearman": 3,
        "layer_reduction": 2,
        "speed_up": 2,
        "expected_layers": 2,
        "exit_by_7": 3,
    }
    return paper_table(
        sources,
        "main_results",
        columns,
        lambda row: str(row["name"]),
        ours,
        sources.apart((*QUALITY, "hardware", "precision")),
        note="Layers and exits by the oracle rule, as in the paper; the deployable rule's are in Results.",
    )


def latency(sources: Sources) -> Table:
    """Milliseconds and speed-up by batch size."""
    rows = sources.variant("leap").get("latency") or []

    def ours(row: Row) -> dict[str, float | None]:
        by_path = {item["path"]: item for item in rows if item["batch"] == row["batch"]}
        full, leaves = by_path.get("full", {}), by_path.get("exit", {})
        return {
            "full_ms": full.get("ms_mean"),
            "exit_ms": leaves.get("ms_mean"),
            "speed_up": leaves.get("speed_up"),
            "expected_layers": leaves.get("expected_layers"),
        }

    columns: dict[str, int | None] = {"full_ms": 2, "exit_ms": 2, "speed_up": 2, "expected_layers": 2}
    return paper_table(
        sources,
        "latency",
        columns,
        lambda row: f"batch {row['batch']}",
        ours,
        sources.apart(LATENCY),
        note="Milliseconds are means, the speed-up is of medians; they compare only on one card.",
    )


def deployment_checklist(sources: Sources) -> Table:
    """The three bounds of the checklist."""
    leap = sources.variant("leap")
    found = {
        "similarity": dig(leap, "exit", "similarity"),
        "nn_at_10": dig(leap, "exit", "nn_at_10"),
        "exit_rate": dig(leap, "exit", "rate"),
    }
    return paper_table(
        sources,
        "deployment_checklist",
        {"value": 3},
        lambda row: f"{row['check']} {row['bound']}",
        lambda row: {"value": found[row["check"]]},
        sources.apart(QUALITY),
        note="Ours where each text really leaves (rule: converged); the paper's at layer 7.",
    )


def hyperparameters(sources: Sources) -> Table:
    """The shared settings beside the paper's."""
    content = sources.settings.model_dump()

    def ours(row: Row) -> dict[str, float | None]:
        block, key = str(row["setting"]).split(".")
        return {"value": number(content[block].get(key))}

    return paper_table(
        sources,
        "hyperparameters",
        {"value": None},
        lambda row: str(row["setting"]),
        ours,
        [],
        note="Ours are the shared settings; a variant may differ.",
    )


def single_figures(sources: Sources) -> Table:
    """Single figures of the text: contraction, directional convergence, overhead, rivals."""
    leap = sources.variant("leap")
    layers: list[Row] = leap.get("layers") or []
    timed = {(row["path"], row["batch"]): row for row in leap.get("latency") or []}
    late = [row for row in layers if row["layer"] >= 6]
    rival = first_seed(sources.studies, "fixed_depth", "layers_7")
    ours: dict[str, float | None] = {
        "similarity_layer_1": sources.layer("leap", 1).get("similarity_to_final"),
        "similarity_layer_5": sources.layer("leap", 5).get("similarity_to_final"),
        "stability_layer_2": sources.layer("leap", 2).get("stability"),
        "stability_layer_12": sources.layer("leap", 12).get("stability"),
        "stability_late_mean": _mean([row.get("stability") for row in late]),
        "median_contraction_leap": _middle([row.get("contraction") for row in layers]),
        "alignment_layer_12": sources.layer("leap", 12).get("alignment"),
        "alignment_late_mean": _mean([row.get("alignment") for row in late]),
        "monitoring_overhead": dig(timed.get(("monitored", 1)), "monitoring_overhead"),
        "latency_efficiency": dig(timed.get(("exit", 1)), "layer_reduction_realised"),
        "fixed_depth_7_spearman": rival["spearman_full"] if rival else None,
        "deebert_heads_spearman": None,
        "external_exit_rate": None,
        "beir_exit_by_6": None,
    }
    rows = [
        (
            f"{name.replace('_', ' ')} ({sources.paper.figures[name].place})",
            [Pair(sources.paper.figures[name].value, value)],
        )
        for name, value in ours.items()
    ]
    apart = sources.apart((*QUALITY, "hardware"))
    note = "The fixed depth is the study's, with its sizes; the rest is the pipeline's."
    return Table("Single figures of the text", "throughout", None, ["value"], rows, apart, "dvc repro", note)


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def _middle(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
