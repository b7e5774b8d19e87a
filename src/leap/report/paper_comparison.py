"""Each table of the paper with what we measured beside it, the difference, and what may explain it."""

from collections.abc import Callable
from typing import Any

from leap.core.settings import Settings
from leap.report import layer_tables, retrieval_tables, run_tables, study_tables
from leap.report.paper import Paper
from leap.report.paper_table import Sources, Table
from leap.report.study_results import Studies

MAKERS: dict[str, Callable[[Sources], Table]] = {
    "main_results": run_tables.main_results,
    "cross_distillation": study_tables.cross_distillation,
    "layer_comparison": layer_tables.layer_comparison,
    "layer_analysis": layer_tables.layer_analysis,
    "exit_distribution": layer_tables.exit_distribution,
    "pareto": study_tables.pareto,
    "beir": retrieval_tables.beir,
    "latency": run_tables.latency,
    "decision_thresholds": study_tables.decision_thresholds,
    "deployment_checklist": run_tables.deployment_checklist,
    "contraction": layer_tables.contraction,
    "exit_strategies": study_tables.exit_strategies,
    "ablation": study_tables.ablation,
    "beta_sensitivity": study_tables.beta_sensitivity,
    "nn_failure": layer_tables.nn_failure,
    "beir_at_5": retrieval_tables.beir_at_5,
    "beir_at_1_and_3": retrieval_tables.beir_at_1_and_3,
    "hyperparameters": run_tables.hyperparameters,
    "figures": run_tables.single_figures,
}


def beside(settings: Settings, summary: dict[str, Any], studies: Studies, paper: Paper) -> dict[str, Table]:
    """Every table of the paper that holds measurements, in the paper's order, by its key.

    Args:
        settings: of the run.
        summary: the content of reports/summary.json.
        studies: those that have been run.
        paper: what stands beside them.
    """
    sources = Sources(settings, summary, studies, paper)
    return {name: make(sources) for name, make in MAKERS.items()}
