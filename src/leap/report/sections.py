"""The folded part of the report: every table of a run, each under the heading that the contents name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from leap.evidence.bounds import recommended
from leap.gate.verdict import mark
from leap.report.evaluator_proof import read_proof
from leap.report.findings import machine, verdict_word, would_fail
from leap.report.grid import Grid, shown, with_interval
from leap.report.study_results import Studies
from leap.report.summary import dig
from leap.report.wall_clock import wall_clock

Variants = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """A folded part.

    key: its anchor.
    title: its line in the contents.
    note: how to read it.
    grids: its tables; those without rows are left out.
    pictures: names of pictures that belong to it.
    """

    key: str
    title: str
    note: str
    grids: list[Grid] = field(default_factory=list)
    pictures: tuple[str, ...] = ()


def sections(summary: dict[str, Any], studies: Studies, asked: dict[str, str]) -> list[Section]:
    """All that has something to show.

    Args:
        summary: the content of reports/summary.json.
        studies: those that have been run.
        asked: the description of every study of the settings.
    """
    variants: Variants = summary["variants"]
    made = [
        _verdicts(variants),
        _layers(variants),
        _control(summary),
        _strategies(variants),
        _sets(variants),
        _latency(summary),
        _lengths(variants),
        _seeds(summary),
        Section("training", "Training", "The total loss by step. Variants minimise different objectives: only the "
                "shape compares.", [], ("losses",)),
        _studies(studies, asked),
        _evaluators(),
        _run(summary),
        _words(),
    ]  # fmt: skip
    return [
        Section(item.key, item.title, item.note, grids, item.pictures)
        for item in made
        if (grids := [grid for grid in item.grids if grid.rows]) or item.pictures or item.key == "studies"
    ]


def layer_grid(layers: Iterable[dict[str, Any]], caption: str = "") -> Grid:
    """A model's layers, a row each; the doctor's page shows the same."""
    columns: dict[str, tuple[str, int]] = {
        "similarity_to_final": ("similarity to last", 3),
        "stability": ("to the one before", 3),
        "exit_rate_converged": ("left by here, converged", 3),
        "exit_rate_near_final": ("left by here, oracle", 3),
        "nn_at_10": ("NN@10", 3),
        "nn_fail_50": ("NN@10 < 0.5", 3),
        "contraction": ("contraction", 3),
        "alignment": ("alignment", 3),
        "viable": ("viable", 0),
    }
    rows = [
        [str(row["layer"]), *(shown(row.get(key), digits, "-") for key, (_, digits) in columns.items())]
        for row in layers
    ]
    return Grid(("layer", *(name for name, _ in columns.values())), rows, caption, words=0)


def length_words(bounds: list[int | None]) -> str:
    """ "9-16" or "129 and more" tokens."""
    return f"{bounds[0]}-{bounds[1]}" if bounds[1] else f"{bounds[0]} and more"


def _of_all(variants: Variants, rows: Callable[[dict[str, Any]], Iterable[list[str]]]) -> list[list[str]]:
    """Rows of every variant, its name before each."""
    return [[name, *cells] for name, variant in variants.items() for cells in rows(variant)]


def _verdicts(variants: Variants) -> Section:
    head = ("check", "value", "95 %", "bound", "n", "result")

    def rows(variant: dict[str, Any]) -> list[list[str]]:
        return [
            [
                check["name"],
                shown(check["value"], 4, "-"),
                " to ".join(f"{end:.4f}" for end in check["interval"]) if check["interval"] else "-",
                check["bound"],
                shown(check["n"], 0, "-"),
                _result(check),
            ]
            for check in dig(variant, "gate", "checks") or []
        ]

    grids = [
        Grid(head, rows(variant), f"{name}: {verdict_word(variant)}", last_words=True)
        for name, variant in variants.items()
    ]
    note = "n counts sentences, pairs or queries, and the timed calls of the speed-up."
    return Section("verdicts", "Verdicts, check by check", note, grids)


def _result(check: dict[str, Any]) -> str:
    if check["value"] is None and check["passed"]:
        return "not applicable"
    word = {"!": "warns", "\N{CHECK MARK}": "passes"}.get(mark(check), "refused")
    return word if check["passed"] else f"{word}: {check['reason']}"


def _layers(variants: Variants) -> Section:
    rising = {name: item["monotonic"] for name, item in variants.items() if item.get("monotonic") is not None}
    near = [name for name, item in variants.items() if item["diagnosis"] == "exits and is near"]
    monotonic = [name for name, rises in rising.items() if rises]
    prediction = (
        " By the paper, exits succeed where similarity to the last layer rises monotonically, here for"
        f" {', '.join(monotonic) or 'none'} of {len(rising)} variants; {len(set(monotonic) & set(near))} of them "
        f"exit and are near, as do {len(set(near) - set(monotonic))} of the others."
        if rising
        else ""
    )
    note = (
        "Converged is the rule that can be deployed: a layer against the one before. The oracle (near_final) "
        "compares with the last layer, which must be computed for it. Both rates are cumulative. Contraction is a "
        "layer's step over the one before, alignment the cosine of the two steps." + prediction
    )
    grids = [layer_grid(item["layers"] or [], f"{name}: {item['diagnosis']}") for name, item in variants.items()]
    return Section("layers", "Layers", note, grids, ("neighbours", "stability", "contraction"))


def _control(summary: dict[str, Any]) -> Section:
    head = ("variant", "layers", "", "similarity", "NN@10", "STS")

    def rows(variant: dict[str, Any]) -> list[list[str]]:
        exit_, cut = variant["exit"], variant["truncation"] or {}
        if not exit_:
            return []
        adaptive, sts = variant.get("adaptive") or {}, variant["sts"]
        gains = [
            with_interval(source.get(f"{key}_gain"), source.get(f"{key}_gain_ci95"), 4)
            for source, key in ((adaptive, "similarity"), (adaptive, "nn_at_10"), (sts, "spearman"))
        ]
        ceilings = [
            shown(source.get(f"{key}_ceiling"), 4, "-")
            for source, key in ((adaptive, "similarity"), (adaptive, "nn_at_10"), (sts, "spearman"))
        ]
        depth = shown(exit_["expected_layers"], 2)
        exited = [shown(exit_["similarity"]), shown(exit_["nn_at_10"]), shown(sts.get("spearman_exit"), 3, "-")]
        truncated = [shown(cut.get(key), 3, "-") for key in ("similarity", "nn_at_10")]
        return [
            [depth, "exited", *exited],
            [depth, "cut", *truncated, shown(sts.get("spearman_truncated"), 3, "-")],
            [depth, "gain", *gains],
            [depth, "an oracle's gain", *ceilings],
        ]

    grids = [Grid(head, _of_all(summary["variants"], rows), words=1)]
    note = (
        "Early exit is worth its checks only where it beats the same network simply cut at its expected depth "
        "(between two layers: interpolated). The oracle sees the last layer and picks by similarity."
    )
    compared = [
        [name, rival, set_name, with_interval(found["difference"], found["ci95"], 4),
         shown(found.get("p_value"), 3, "-")]
        for name, variant in summary["variants"].items()
        for rival, figures in (variant.get("rivals") or {}).items()
        for set_name, modes in (figures.get("sts") or {}).items()
        for mode, found in modes.items()
        if mode == "exit" and variant.get("role") != rival
    ]  # fmt: skip
    against = ("variant", "against", "set", "STS exited, less the other's full depth", "p")
    grids.append(Grid(against, compared, "Against the gate's controls, pair by pair", words=3))
    return Section("control", "Against the same model cut, and against the controls", note, grids)


def _strategies(variants: Variants) -> Section:
    head = ("variant", "strategy", "layers", "leave early", "similarity", "NN@10", "quality", "time",
            "gate's checks on these sentences")  # fmt: skip

    def rows(variant: dict[str, Any]) -> list[list[str]]:
        checks = dig(variant, "gate", "checks") or []
        found = []
        for row in variant["strategies"] or []:
            fails = would_fail(row, checks)
            judged = "cannot be deployed" if not row["deployable"] else "fails: " + "; ".join(fails)
            if row["deployable"] and not fails:
                judged = "passes those that it can be judged by" if checks else "-"
            found.append(
                [
                    row["strategy"],
                    shown(row["expected_layers"], 2),
                    *(shown(row[key]) for key in ("rate", "similarity", "nn_at_10")),
                    shown(row.get("quality"), 3, "-"),
                    wall_clock(variant["latency"], row),
                    judged,
                ]
            )
        return found

    tried = [
        [name, f"theta {best['threshold']:g}, min_layer {best['min_layer']}, patience {best['patience']}",
         shown(best["expected_layers"], 2), shown(best["similarity"]), shown(best["nn_at_10"])]
        for name, variant in variants.items()
        if (best := recommended(variant.get("sweep") or []))
    ]  # fmt: skip
    note = (
        "Quality is Spearman over that of full depth. near_final needs the last layer. Calibrated exits are those "
        "of `leap calibrate`. The gate judges its checks on the deployed rule; the last column holds each "
        "strategy's own figures against the same bounds, without intervals. Time: median of a sentence at the "
        "smallest batch; about: estimated from the pass with all checks."
    )
    grids = [
        Grid(head, _of_all(variants, rows), words=2, last_words=True),
        Grid(("variant", "rule", "layers", "similarity", "NN@10"), tried,
             "Of all rules tried, the fewest layers that pass the paper's deployment checklist", words=2),
    ]  # fmt: skip
    return Section("strategies", "Exit strategies and the calibrated mode", note, grids)


def _sets(variants: Variants) -> Section:
    def pairs(variant: dict[str, Any]) -> list[list[str]]:
        return [
            [
                f"{name}, Spearman",
                shown(found["n"], None),
                with_interval(found["spearman_full"], found.get("ci95_full")),
                "-",
                with_interval(found["spearman_exit"], found.get("ci95")),
            ]
            for name, found in variant["sts"]["sets"].items()
            if found
        ]

    def collections(variant: dict[str, Any]) -> list[list[str]]:
        key = "ndcg_at_10"
        return [
            [
                f"{name}, nDCG@10",
                shown(found["n_queries"], None),
                *(
                    with_interval(found.get(f"{key}_{mode}"), found.get(f"{key}_{mode}_ci95"))
                    for mode in ("full", "query_exit", "exit")
                ),
            ]
            for name, found in variant["retrieval"].items()
            if found
        ]

    rows = _of_all(variants, lambda variant: [*pairs(variant), *collections(variant)])
    head = ("variant", "set", "n", "full depth", "queries exit", "exited")
    note = "95 % intervals by bootstrap. Queries exit: they leave early and search documents at full depth."
    layers = _of_all(
        variants,
        lambda variant: [
            [name, str(row["layer"]), shown(row.get("ndcg_at_10")), shown(row.get("nn_at_10"), 3, "-")]
            for name, found in variant["retrieval"].items()
            for row in (found or {}).get("by_query_layer") or []
        ],
    )
    grids = [
        Grid(head, rows, words=2),
        Grid(("variant", "set", "queries cut at layer", "nDCG@10", "NN@10"), layers,
             "Queries cut at a layer in the index built at full depth", words=2),
    ]  # fmt: skip
    return Section("sets", "Similarity and retrieval sets", note, grids)


def _latency(summary: dict[str, Any]) -> Section:
    head = ("variant", "length", "batch", "path", "p50 ms", "p95 ms", "layers", "speed-up", "of the reduction",
            "checks cost")  # fmt: skip

    def rows(variant: dict[str, Any]) -> list[list[str]]:
        return [
            [
                length_name(row),
                str(row["batch"]),
                row["path"] + (", mixed" if row["mixed"] else ""),
                shown(row["ms_p50"], 2),
                shown(row["ms_p95"], 2),
                shown(row["expected_layers"], 2),
                with_interval(row["speed_up"], row.get("speed_up_ci95"), 2),
                shown(row.get("layer_reduction_realised"), 2, "-"),
                shown(row.get("monitoring_overhead"), 3, "-"),
            ]
            for row in variant["latency"] or []
        ]

    note = (
        f"On {machine(summary)}: milliseconds hold for this machine only, ratios travel further. Speed-up is full "
        "depth's median over this row's, of the same length and batch. Monitored computes all layers and checks "
        "each: what the checks cost where nobody leaves."
    )
    return Section(
        "latency", "Latency", note, [Grid(head, _of_all(summary["variants"], rows))], ("latency", "frontier")
    )


def length_name(row: dict[str, Any]) -> str:
    """ "sentences", or "128 tokens" for rows joined to that length."""
    length = row.get("length", "sentences")
    return length if isinstance(length, str) else f"{length} tokens"


def _lengths(variants: Variants) -> Section:
    def rows(variant: dict[str, Any]) -> list[list[str]]:
        return [
            [
                length_words(row["tokens"]),
                shown(row["n"], None),
                shown(row["expected_layers"], 2),
                shown(row["similarity"]),
                shown(row["nn_at_10"]),
                with_interval(row["similarity_gain"], row["similarity_gain_ci95"], 4),
            ]
            for row in variant.get("by_length") or []
        ]

    head = ("variant", "tokens", "sentences", "layers", "similarity", "NN@10", "similarity gained over the cut")
    note = "Bins with few sentences are left out, so their sum may be smaller than the set."
    return Section("lengths", "By length of the sentence", note, [Grid(head, _of_all(variants, rows))])


def _seeds(summary: dict[str, Any]) -> Section:
    rows = [
        [name, figure, *(shown(found[key], 4, "-") for key in ("mean", "std", "low", "high")), str(found["n"])]
        for name, variant in summary["variants"].items()
        for figure, found in (variant.get("spread") or {}).items()
        if len(summary["run"]["seeds"]) > 1
    ]
    head = ("variant", "figure", "mean", "standard deviation", "lowest", "highest", "seeds")
    return Section("seeds", "Spread over seeds", "", [Grid(head, rows, words=2)])


def _studies(studies: Studies, asked: dict[str, str]) -> Section:
    keys = ("spearman_full", "spearman_exit", "spearman_truncated", "expected_layers", "exit_rate", "similarity",
            "nn_at_10")  # fmt: skip
    head = ("variant", "depth", "Spearman full", "exited", "cut", "layers", "exit rate", "similarity", "NN@10")
    grids: list[Grid] = []
    for name, study in studies.items():
        rows = []
        for content in study["variants"].values():
            depth = next(iter(content["seeds"].values()))["depth"]
            mean = content["over_seeds"]
            rows.append(
                [content["description"], str(depth)]
                + [with_interval(mean[key]["mean"], mean[key].get("ci95")) for key in keys]
            )
        grids.append(Grid(head, rows, f"{name}: {asked.get(name, '')}"))
        grids += _extra_grids(study)
    waiting = [f"`make study-{name}` ({text})" for name, text in asked.items() if name not in studies]
    note = "Small trainings of their own, one question each; 95 % intervals over the study's seeds."
    if waiting:
        note += f" Not run yet: {', '.join(waiting)}."
    return Section("studies", "Studies", note, grids, ("pareto", "fixed_depth", "widths"))


# The further rows of a study: their key, what they show, and their columns.
EXTRAS: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("thresholds", "patiences", "own"), "exit strategies",
     ("strategy", "threshold", "patience", "spearman", "expected_layers", "exit_rate", "similarity", "nn_at_10")),
    (("int8",), "int8 weights and early exit",
     ("weights", "path", "spearman", "nn_at_10", "ms_p50", "speed_up")),
    (("widths",), "first dimensions of the vector and early exit",
     ("path", "width", "spearman", "nn_at_10", "expected_layers", "reduction")),
)  # fmt: skip


def _extra_grids(study: dict[str, Any]) -> list[Grid]:
    grids = []
    for content in study["variants"].values():
        first = next(iter(content["seeds"].values()))
        for keys, what, columns in EXTRAS:
            found = [row for key in keys for row in first.get(key) or []]
            rows = [[shown(row.get(column), 3, "-") for column in columns] for row in found]
            names = [column.replace("_", " ").replace("nn at 10", "NN@10") for column in columns]
            grids.append(Grid(names, rows, f"{content['description']}: {what}"))
    return grids


def _evaluators() -> Section:
    proof = read_proof()
    rows = [
        [row["what"], shown(row["found"], 4), shown(row["value"], 4), shown(row["tolerance"], 4),
         "our own earlier measurement" if row["source"] == "prototype" else row["source"], shown(row["holds"])]
        for row in (proof or {}).get("figures", [])
    ]  # fmt: skip
    note = (
        f"Published scores of {proof['model']}, measured by these evaluators on {proof['date']}." if proof else ""
    )
    head = ("figure", "measured", "published", "tolerance", "source", "agrees")
    return Section("evaluators", "Proof of the evaluators", note, [Grid(head, rows)])


def _run(summary: dict[str, Any]) -> Section:
    run, hardware = summary["run"], summary["hardware"] or {}
    rule = ", ".join(f"{key} {value}" for key, value in run["exit"].items())
    rows = [
        ["profile, seeds", f"{summary['profile']}; {', '.join(map(str, run['seeds']))}"],
        ["teacher", f"{run['teacher']['source']} ({run['teacher']['kind']})"],
        ["exit rule (a variant may differ)", rule],
        ["sentences", "; ".join(f"{name} {count:,}" for name, count in (run["data"] or {}).items())],
        ["sentences by source", "; ".join(f"{name} {count:,}" for name, count in run["sources"].items())],
        ["machine", machine(summary)],
        ["software", ", ".join(f"{key} {hardware.get(key)}" for key in ("python", "torch", "transformers"))],
        ["commit", f"{hardware.get('commit') or 'outside git'}{' with changes' if hardware.get('dirty') else ''}"],
        *([f"variant {name}", item["description"]] for name, item in summary["variants"].items()),
    ]
    return Section("run", "What this run was", "", [Grid(("", ""), rows, last_words=True)])


def _words() -> Section:
    rows = [
        ["layers", "mean number of layers that a sentence computes before it leaves (rule: converged)"],
        ["similarity", "mean cosine of a sentence's vector where it left and at full depth. A high exit "
         "rate with a low similarity is false convergence: layers agree with the one before, far from the last"],
        ["NN@10", "share of a sentence's ten nearest neighbours at full depth that stay where it left"],
        ["STS", "Spearman correlation of cosines with people's scores"],
        ["nDCG@10", "retrieval quality of the first ten documents, exact search"],
        ["control", "a variant to compare with; it is measured and judged like any other, and never promoted"],
    ]  # fmt: skip
    return Section("words", "How to read the numbers", "", [Grid(("", ""), rows, last_words=True)])
