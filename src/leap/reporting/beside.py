"""Each table of the paper with what we measured beside it, the difference, and what may explain it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from leap.reporting.differences import (
    LATENCY,
    QUALITY,
    RETRIEVAL,
    RunSetting,
    of_run,
    of_study,
    reasons,
)
from leap.reporting.paper import Cell, Paper
from leap.reporting.studies import Studies, first_seed
from leap.reporting.summary import dig
from leap.settings import Settings

Row = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """One figure twice: the paper's and ours; null where one of the two has none."""

    paper: float | None
    ours: float | None
    digits: int = 3

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; null where one is missing."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """A table of the paper beside ours.

    rows: label and a pair a column. `apart` says in what the settings differ; where nothing of ours is there
    `command` says how to get it.
    """

    title: str
    place: str
    rule: str | None
    columns: list[str]
    rows: list[tuple[str, list[Pair]]]
    apart: list[str]
    command: str
    note: str = ""

    @property
    def missing(self) -> bool:
        """Whether nothing of ours is there."""
        return all(pair.ours is None for _, pairs in self.rows for pair in pairs)


@dataclass(frozen=True)
class Sources:
    """All that the tables are made from."""

    settings: Settings
    summary: dict[str, Any]
    studies: Studies
    paper: Paper
    run: RunSetting = field(init=False)

    def __post_init__(self) -> None:
        """Reads the run's setting once."""
        object.__setattr__(self, "run", of_run(self.settings, self.summary))

    def variant(self, name: str) -> Row:
        """A variant of the pipeline's results, empty where there is none."""
        found: Row = self.summary["variants"].get(name) or {}
        return found

    def layer(self, variant: str, number: int) -> Row:
        """One layer's row of a variant, empty where it has none."""
        return next((row for row in self.variant(variant).get("layers") or [] if row["layer"] == number), {})

    def apart(self, kinds: tuple[str, ...], study: str | None = None, **sizes: int) -> list[str]:
        """In what the settings differ from the paper's."""
        known = study is None or study in self.settings.studies
        ours = of_study(self.settings, self.summary, study) if study and known else self.run
        return reasons(ours, self.paper.setting, kinds, sizes)


def beside(settings: Settings, summary: dict[str, Any], studies: Studies, paper: Paper) -> dict[str, Table]:
    """Every table of the paper that holds measurements, in the paper's order, by its key."""
    sources = Sources(settings, summary, studies, paper)
    makers: dict[str, Callable[[Sources], Table]] = {
        "main_results": _main,
        "cross_distillation": _cross_distillation,
        "layer_comparison": _layer_comparison,
        "layer_analysis": _layer_analysis,
        "exit_distribution": _exit_distribution,
        "pareto": _pareto,
        "beir": _beir,
        "latency": _latency,
        "decision_thresholds": _decision_thresholds,
        "deployment_checklist": _checklist,
        "contraction": _contraction,
        "exit_strategies": _strategies,
        "ablation": _ablation,
        "beta_sensitivity": _beta,
        "nn_failure": _nn_failure,
        "beir_at_5": _beir_at_5,
        "beir_at_1_and_3": _beir_at_1_and_3,
        "hyperparameters": _hyperparameters,
        "figures": _figures,
    }
    return {name: make(sources) for name, make in makers.items()}


def _table(
    sources: Sources,
    key: str,
    columns: dict[str, int],
    label: Callable[[Row], str],
    ours: Callable[[Row], dict[str, float | None]],
    apart: list[str],
    command: str = "dvc repro",
    note: str = "",
) -> Table:
    """A table whose rows are the paper's: each column's figure beside ours of the same name.

    Args:
        sources: has the paper's table.
        key: of the paper's table.
        columns: the paper's columns that are shown, with their digits.
        label: a row's name.
        ours: our figures for a row of the paper.
        apart: in what the settings differ.
        command: how to measure what is missing.
        note: what else a reader must know.
    """
    table = sources.paper.tables[key]
    rows = []
    for row in table.rows:
        found = ours(row)
        pairs = [Pair(_number(row.get(name)), found.get(name), digits) for name, digits in columns.items()]
        rows.append((label(row), pairs))
    names = [name.replace("_", " ") for name in columns]
    return Table(table.title, table.place, table.rule, names, rows, apart, command, note)


def _main(sources: Sources) -> Table:
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

    columns = {"spearman": 3, "layer_reduction": 2, "speed_up": 2, "expected_layers": 2, "exit_by_7": 3}
    return _table(
        sources,
        "main_results",
        columns,
        lambda row: str(row["name"]),
        ours,
        sources.apart((*QUALITY, "hardware", "precision")),
        note="Layers and exits by the oracle rule, as in the paper; the deployable rule's are in Results.",
    )


def _layer_comparison(sources: Sources) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name in ("baseline", "leap"):
            layer = sources.layer(name, row["layer"])
            found[f"{name}_similarity"] = layer.get("similarity_to_final")
            found[f"{name}_exit_rate"] = layer.get("exit_rate_near_final")
        return found

    columns = dict.fromkeys(
        ("baseline_similarity", "baseline_exit_rate", "leap_similarity", "leap_exit_rate"), 3
    )
    return _table(sources, "layer_comparison", columns, _layer_label, ours, sources.apart(QUALITY))


def _layer_analysis(sources: Sources) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        layer = sources.layer("leap", row["layer"])
        return {
            "similarity": layer.get("similarity_to_final"),
            "exit_rate": layer.get("exit_rate_near_final"),
            "nn_at_10": layer.get("nn_at_10"),
        }

    columns = {"similarity": 3, "exit_rate": 3, "nn_at_10": 2}
    return _table(sources, "layer_analysis", columns, _layer_label, ours, sources.apart(QUALITY))


def _exit_distribution(sources: Sources) -> Table:
    rates = [row["exit_rate_near_final"] for row in sources.variant("leap").get("layers") or []]
    shares = dict(enumerate((after - before for before, after in pairwise([0.0, *rates])), 1))
    return _table(
        sources,
        "exit_distribution",
        {"share": 3},
        _layer_label,
        lambda row: {"share": shares.get(row["layer"])},
        sources.apart(QUALITY),
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


def _pareto(sources: Sources) -> Table:
    swept = _thresholds(sources, "near_final")
    return _table(
        sources,
        "pareto",
        {"spearman": 3, "layer_reduction": 2, "expected_layers": 2, "exit_by_7": 3},
        _theta_label,
        lambda row: swept.get(row["threshold"], {}),
        sources.apart(QUALITY, "thresholds"),
        "make study-thresholds",
    )


def _decision_thresholds(sources: Sources) -> Table:
    swept = _thresholds(sources, "near_final")

    def ours(row: Row) -> dict[str, float | None]:
        found = swept.get(row["threshold"], {})
        return {"layer_reduction": found.get("layer_reduction"), "nn_fail": found.get("nn_fail_50")}

    return _table(
        sources,
        "decision_thresholds",
        {"layer_reduction": 2, "speed_up": 2, "nn_fail": 3},
        _theta_label,
        ours,
        sources.apart(QUALITY, "thresholds"),
        "make study-thresholds",
        "The oracle rule cannot be timed: it needs the last layer. The deployable one is, in Latency.",
    )


def _strategies(sources: Sources) -> Table:
    figures = first_seed(sources.studies, "strategies", "leap") or {}

    def ours(row: Row) -> dict[str, float | None]:
        rows = figures.get("patiences" if row["strategy"] == "pabee" else "thresholds", [])
        key = "patience" if row["strategy"] == "pabee" else "threshold"
        wanted = (row["strategy"], row[key])
        found = next((item for item in rows if (item["strategy"], item[key]) == wanted), None)
        if found is None:
            return {}
        return {**found, "quality": found["spearman"] / figures["spearman_full"]}

    return _table(
        sources,
        "exit_strategies",
        {"quality": 3, "layer_reduction": 2, "expected_layers": 2, "exit_rate": 3},
        lambda row: f"{row['strategy']} {row.get('patience') or row.get('threshold')}",
        ours,
        sources.apart(QUALITY, "strategies"),
        "make study-strategies",
    )


def _oracle_of(sources: Sources, study: str, variant: str) -> dict[str, float | None]:
    """What the paper's tables show of a variant: its figures under the oracle rule, first seed."""
    figures = first_seed(sources.studies, study, variant)
    if figures is None:
        return {}
    seventh: Row = next((row for row in figures["layers"] if row["layer"] == 7), {})
    return {**figures["oracle"], "exit_by_7": seventh.get("exit_rate_near_final")}


def _ablation(sources: Sources) -> Table:
    return _table(
        sources,
        "ablation",
        {"spearman": 3, "layer_reduction": 2, "exit_by_7": 3},
        lambda row: str(row["variant"]).replace("_", " "),
        lambda row: _oracle_of(sources, "ablation", row["variant"]),
        sources.apart(QUALITY, "ablation"),
        "make study-ablation",
    )


def _beta(sources: Sources) -> Table:
    sizes = {
        "sentences": int(sources.paper.figures["beta_sweep_sentences"].value),
        "epochs": int(sources.paper.figures["beta_sweep_epochs"].value),
    }
    return _table(
        sources,
        "beta_sensitivity",
        {"spearman": 3, "layer_reduction": 2, "exit_by_7": 3},
        lambda row: f"beta {row['beta']}",
        lambda row: _oracle_of(sources, "beta", f"beta_{row['beta']}".replace(".", "")),
        sources.apart(QUALITY, "beta", **sizes),
        "make study-beta",
    )


def _cross_distillation(sources: Sources) -> Table:
    names = {"MiniLM-L6-v2": "all_minilm_l6_v2", "TinyBERT-6": "tinybert_6", "DistilBERT-6": "distilbert_6"}

    def ours(row: Row) -> dict[str, float | None]:
        figures = first_seed(sources.studies, "cross_distillation", names[row["model"]])
        return {"max_exit_rate": figures["exit_rate"] if figures else None}

    return _table(
        sources,
        "cross_distillation",
        {"max_exit_rate": 3},
        lambda row: f"{row['model']}, {row['distillation']}",
        ours,
        sources.apart(("similarity_set",)),
        "make study-cross_distillation",
        "Ready checkpoints; add more to the study's variants.",
    )


def _beir(sources: Sources) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        base, leap = (_ndcg(sources, name, row["set"]) for name in ("baseline", "leap"))
        return {
            "baseline_full": base("10_full"),
            "leap_full": leap("10_full"),
            "leap_exit": leap("10_exit"),
            "change_by_leap": _change(base("10_full"), leap("10_full")),
            "change_by_exit": _change(leap("10_full"), leap("10_exit")),
        }

    columns = dict.fromkeys(
        ("baseline_full", "leap_full", "leap_exit", "change_by_leap", "change_by_exit"), 3
    )
    return _table(
        sources,
        "beir",
        columns,
        lambda row: str(row["set"]),
        ours,
        sources.apart(RETRIEVAL),
        note="The average is over the paper's five sets and missing where one is; other collections of this "
        "run are under Similarity and retrieval sets.",
    )


def _beir_at_5(sources: Sources) -> Table:
    return _shallow(sources, "beir_at_5", (5, 10))


def _beir_at_1_and_3(sources: Sources) -> Table:
    return _shallow(sources, "beir_at_1_and_3", (1, 3))


def _shallow(sources: Sources, key: str, cutoffs: tuple[int, int]) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        base, leap = (_ndcg(sources, name, row["set"]) for name in ("baseline", "leap"))
        found: dict[str, float | None] = {}
        for at in cutoffs:
            one, two = base(f"{at}_full"), leap(f"{at}_full")
            found |= {f"baseline_at_{at}": one, f"leap_at_{at}": two, f"change_at_{at}": _change(one, two)}
        return found

    columns = {f"{name}_at_{at}": 3 for at in cutoffs for name in ("baseline", "leap", "change")}
    return _table(sources, key, columns, lambda row: str(row["set"]), ours, sources.apart(RETRIEVAL))


def _ndcg(sources: Sources, variant: str, name: str) -> Callable[[str], float | None]:
    """nDCG of a set, or the average over the paper's five where all are there."""
    sets = sources.variant(variant).get("retrieval") or {}

    def at(path: str) -> float | None:
        if name != "average":
            return _number(dig(sets.get(name), f"ndcg_at_{path}"))
        names = [str(row["set"]) for row in sources.paper.tables["beir"].rows if row["set"] != "average"]
        values = [_number(dig(sets.get(each), f"ndcg_at_{path}")) for each in names]
        found = [value for value in values if value is not None]
        return sum(found) / len(found) if len(found) == len(values) else None

    return at


def _latency(sources: Sources) -> Table:
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

    columns = {"full_ms": 2, "exit_ms": 2, "speed_up": 2, "expected_layers": 2}
    return _table(
        sources,
        "latency",
        columns,
        lambda row: f"batch {row['batch']}",
        ours,
        sources.apart(LATENCY),
        note="Milliseconds are means, the speed-up is of medians; they compare only on one card.",
    )


def _checklist(sources: Sources) -> Table:
    leap = sources.variant("leap")
    found = {
        "similarity": dig(leap, "exit", "similarity"),
        "nn_at_10": dig(leap, "exit", "nn_at_10"),
        "exit_rate": dig(leap, "exit", "rate"),
    }
    return _table(
        sources,
        "deployment_checklist",
        {"value": 3},
        lambda row: f"{row['check']} {row['bound']}",
        lambda row: {"value": found[row["check"]]},
        sources.apart(QUALITY),
        note="Ours where each text really leaves (rule: converged); the paper's at layer 7.",
    )


def _contraction(sources: Sources) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        name = str(row["model"])
        found: dict[str, float | None] = {
            f"layer_{number}": sources.layer(name, number).get("similarity_to_final")
            for number in (6, 7, 9, 12)
        }
        return {**found, "exit_by_7": sources.layer(name, 7).get("exit_rate_near_final")}

    columns = dict.fromkeys(("layer_6", "layer_7", "layer_9", "layer_12", "exit_by_7"), 3)
    return _table(
        sources,
        "contraction",
        columns,
        lambda row: str(row["model"]),
        ours,
        sources.apart(QUALITY),
        note="The paper gives the baseline's only as below 0.90.",
    )


def _nn_failure(sources: Sources) -> Table:
    def ours(row: Row) -> dict[str, float | None]:
        layer = sources.layer("leap", row["layer"])
        return {
            "nn_at_10": layer.get("nn_at_10"),
            "below_50": layer.get("nn_fail_50"),
            "below_30": layer.get("nn_fail_30"),
        }

    columns = {"nn_at_10": 2, "below_50": 3, "below_30": 3}
    return _table(sources, "nn_failure", columns, _layer_label, ours, sources.apart(QUALITY))


def _hyperparameters(sources: Sources) -> Table:
    content = sources.settings.model_dump()

    def ours(row: Row) -> dict[str, float | None]:
        block, key = str(row["setting"]).split(".")
        return {"value": _number(content[block].get(key))}

    return _table(
        sources,
        "hyperparameters",
        {"value": 6},
        lambda row: str(row["setting"]),
        ours,
        [],
        note="Ours are the shared settings; a variant may differ.",
    )


def _figures(sources: Sources) -> Table:
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
        "median_contraction_leap": _median([row.get("contraction") for row in layers]),
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
    return Table("Single figures of the text", "throughout", None, ["value"], rows, apart, "dvc repro")


def _layer_label(row: Row) -> str:
    return f"layer {row['layer']}"


def _theta_label(row: Row) -> str:
    return f"theta {row['threshold']:.2f}"


def _change(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after is not None else None


def _number(value: Cell | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _median(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
