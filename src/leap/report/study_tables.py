"""The paper's tables that a study answers: thresholds, strategies, ablation, beta, ready checkpoints."""

from leap.report.differences import QUALITY
from leap.report.paper_table import Row, Sources, Table, paper_table, theta_label
from leap.report.study_results import first_seed


def pareto(sources: Sources) -> Table:
    """Quality and depth by theta."""
    swept = _thresholds(sources, "near_final")
    return paper_table(
        sources,
        "pareto",
        {"spearman": 3, "layer_reduction": 2, "expected_layers": 2, "exit_by_7": 3},
        theta_label,
        lambda row: swept.get(row["threshold"], {}),
        sources.apart(QUALITY, "thresholds"),
        "make study-thresholds",
    )


def decision_thresholds(sources: Sources) -> Table:
    """What theta costs and saves."""
    swept = _thresholds(sources, "near_final")

    def ours(row: Row) -> dict[str, float | None]:
        found = swept.get(row["threshold"], {})
        return {"layer_reduction": found.get("layer_reduction"), "nn_fail": found.get("nn_fail_50")}

    return paper_table(
        sources,
        "decision_thresholds",
        {"layer_reduction": 2, "speed_up": 2, "nn_fail": 3},
        theta_label,
        ours,
        sources.apart(QUALITY, "thresholds"),
        "make study-thresholds",
        "The oracle rule cannot be timed: it needs the last layer. The deployable one is, in Latency.",
    )


def exit_strategies(sources: Sources) -> Table:
    """Exit strategies; quality is a share of full depth's."""
    figures = first_seed(sources.studies, "strategies", "leap") or {}

    def ours(row: Row) -> dict[str, float | None]:
        rows = figures.get("patiences" if row["strategy"] == "pabee" else "thresholds", [])
        key = "patience" if row["strategy"] == "pabee" else "threshold"
        wanted = (row["strategy"], row[key])
        found = next((item for item in rows if (item["strategy"], item[key]) == wanted), None)
        if found is None:
            return {}
        return {**found, "quality": found["spearman"] / figures["spearman_full"]}

    return paper_table(
        sources,
        "exit_strategies",
        {"quality": 3, "layer_reduction": 2, "expected_layers": 2, "exit_rate": 3},
        lambda row: f"{row['strategy']} {row.get('patience') or row.get('threshold')}",
        ours,
        sources.apart(QUALITY, "strategies"),
        "make study-strategies",
    )


def ablation(sources: Sources) -> Table:
    """The ladder, a rung a row."""
    return paper_table(
        sources,
        "ablation",
        {"spearman": 3, "layer_reduction": 2, "exit_by_7": 3},
        lambda row: str(row["variant"]).replace("_", " "),
        lambda row: _oracle_of(sources, "ablation", row["variant"]),
        sources.apart(QUALITY, "ablation"),
        "make study-ablation",
    )


def beta_sensitivity(sources: Sources) -> Table:
    """The weight of the exit loss."""
    sizes = {
        "sentences": int(sources.paper.figures["beta_sweep_sentences"].value),
        "epochs": int(sources.paper.figures["beta_sweep_epochs"].value),
    }
    return paper_table(
        sources,
        "beta_sensitivity",
        {"spearman": 3, "layer_reduction": 2, "exit_by_7": 3},
        lambda row: f"beta {row['beta']}",
        lambda row: _oracle_of(sources, "beta", f"beta_{row['beta']}".replace(".", "")),
        sources.apart(QUALITY, "beta", **sizes),
        "make study-beta",
    )


def cross_distillation(sources: Sources) -> Table:
    """Ready checkpoints."""
    names = {"MiniLM-L6-v2": "all_minilm_l6_v2", "TinyBERT-6": "tinybert_6", "DistilBERT-6": "distilbert_6"}

    def ours(row: Row) -> dict[str, float | None]:
        figures = first_seed(sources.studies, "cross_distillation", names[row["model"]])
        return {"max_exit_rate": figures["exit_rate"] if figures else None}

    return paper_table(
        sources,
        "cross_distillation",
        {"max_exit_rate": 3},
        lambda row: f"{row['model']}, {row['distillation']}",
        ours,
        sources.apart(("similarity_set",)),
        "make study-cross_distillation",
        "Ready checkpoints; add more to the study's variants.",
    )


def _thresholds(sources: Sources, strategy: str) -> dict[float, Row]:
    """By theta, the swept figures of the paper's own tau, from the study of thresholds or of strategies."""
    for study, variant in (("thresholds", "tau_098"), ("strategies", "leap")):
        figures = first_seed(sources.studies, study, variant)
        if figures is not None:
            rows = [row for row in figures.get("thresholds", []) if row["strategy"] == strategy]
            if rows:
                return {row["threshold"]: row for row in rows}
    return {}


def _oracle_of(sources: Sources, study: str, variant: str) -> dict[str, float | None]:
    """What the paper's tables show of a variant: its figures under the oracle rule, first seed."""
    figures = first_seed(sources.studies, study, variant)
    if figures is None:
        return {}
    seventh: Row = next((row for row in figures["layers"] if row["layer"] == 7), {})
    return {**figures["oracle"], "exit_by_7": seventh.get("exit_rate_near_final")}
