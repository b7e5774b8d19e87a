"""The folded part of the report: every table of a run, each under the heading that the contents name."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from leap.core.grid import Grid, shown, with_interval
from leap.evidence.bounds import recommend
from leap.gate.verdict import mark
from leap.report.findings import machine, would_fail
from leap.report.study_results import Studies
from leap.report.summary import dig
from leap.report.wall_clock import wall_clock

Row = dict[str, Any]

# Columns are "heading=key:digits", the heading being the key and the digits 3 where they are left out.
LAYERS = (
    "layer:0; to the last=similarity_to_final; to the previous=stability; left (rule)=exit_rate_converged; "
    "left (oracle)=exit_rate_near_final; NN@10=nn_at_10; NN@10 < 0.5=nn_fail_50; contraction; alignment; viable"
)
FIGURES = "layers=expected_layers:2; leave early=rate; similarity; NN@10=nn_at_10"
LENGTHS = f"tokens=bounds; sentences=n:0; {FIGURES}; gained over the cut=similarity_gain:4"
STUDY = (
    "variant; depth:0; Spearman full=spearman_full; exited=spearman_exit; cut=spearman_truncated; "
    "layers=expected_layers:2; exit rate=exit_rate; similarity; NN@10=nn_at_10"
)
# The further rows of a study by their keys, with what they show.
FURTHER = (
    (
        ("thresholds", "patiences", "own"),
        "exit strategies",
        "strategy; theta=threshold:2; patience:0; Spearman=spearman; layers=expected_layers:2; NN@10=nn_at_10",
    ),
    (
        ("weights",),
        "weights of fewer bits and early exit",
        "weights; path; Spearman=spearman; NN@10=nn_at_10; layers=expected_layers:2; leave elsewhere=moved; "
        "p50 ms=ms_p50:2; speed-up=speed_up:2",
    ),
    (
        ("widths",),
        "first dimensions of the vector and early exit",
        "path; width:0; Spearman=spearman; NN@10=nn_at_10; layers=expected_layers:2; saved, x=reduction:2",
    ),
)
WORDS = {
    "layers": "mean number of layers that a sentence computes before it leaves (rule: converged)",
    "similarity": "mean cosine of a sentence's vector where it left and at full depth. A high exit rate with a "
    "low similarity is false convergence: layers agree with the one before and are far from the last",
    "NN@10": "share of a sentence's ten nearest neighbours at full depth that stay where it left",
    "STS": "Spearman correlation of cosines with people's scores",
    "nDCG@10": "retrieval quality of the first ten documents, exact search",
    "control": "a variant to compare with; it is measured and judged like any other, and never promoted",
}


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


def sections(summary: dict[str, Any], studies: Studies, asked: dict[str, str]) -> Iterator[Section]:
    """Yield every part that has something to show; `asked` is the description of every study of the settings."""
    variants = summary["variants"]
    for part in (
        _verdicts(variants),
        _layers(variants),
        _control(summary),
        _strategies(variants),
        _sets(variants),
        _latency(summary),
        Section("lengths", "By length of the sentence", "Bins of few sentences are left out.",
                [grid(f"variant; {LENGTHS}", length_rows(_rows(variants, "by_length")), words=2)]),
        Section("seeds", "Spread over seeds", "", [_spread(summary)]),
        _training(summary),
        _studies(studies, asked),
        Section("run", "What this run was", "", [_run(summary)]),
        Section("words", "How to read the numbers", "", [Grid(("", ""), list(WORDS.items()), last_words=True)]),
    ):  # fmt: skip
        grids = [table for table in part.grids if table.rows]
        if grids or part.pictures:
            yield Section(part.key, part.title, part.note, grids, part.pictures)


def grid(columns: str, rows: Iterable[Row], caption: str = "", words: int = 1, last_words: bool = False) -> Grid:
    """A table of rows; a figure whose 95 % interval lies next to it in the row shows it.

    Args:
        columns: "heading=key:digits; ...".
        rows: a key missing in one, or null, is a dash.
        caption: what the table shows.
        words: so many leading columns are aligned left.
        last_words: so is the last one.
    """
    split = [column.strip().rpartition("=") for column in columns.split(";")]
    keys = [(key.partition(":")[0], int(key.partition(":")[2] or 3)) for _, _, key in split]
    head = [heading or key.partition(":")[0].replace("_", " ") for heading, _, key in split]
    return Grid(head, [[_cell(row, *key) for key in keys] for row in rows], caption, words, last_words)


def _cell(row: Row, key: str, digits: int) -> str:
    interval = row.get(f"{key}_ci95")
    return with_interval(row.get(key), interval, digits) if interval else shown(row.get(key), digits, "-")


def _rows(variants: dict[str, Row], *path: str) -> Iterator[Row]:
    """The rows at a path of every variant, with its name."""
    for name, variant in variants.items():
        for row in dig(variant, *path) or []:
            yield {"variant": name, **row}


def length_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows by length with their bounds in words."""
    for row in rows:
        low, high = row["tokens"]
        yield {**row, "bounds": f"{low}-{high}" if high else f"{low} and more"}


def _verdicts(variants: dict[str, Row]) -> Section:
    def result(check: Row) -> str:
        if check["value"] is None and check["passed"]:
            return "not applicable"
        word = {"!": "warns", "\N{CHECK MARK}": "passes"}.get(mark(check), "refused")
        return word if check["passed"] else f"{word}: {check['reason']}"

    rows = [
        {**check, "value_ci95": check["interval"], "result": result(check)}
        for check in _rows(variants, "gate", "checks")
    ]
    table = grid("variant; check=name; value:4; bound; n:0; result", rows, words=2, last_words=True)
    note = "n counts sentences, pairs or queries, and the timed calls of the speed-up."
    return Section("verdicts", "Verdicts, check by check", note, [table])


def _layers(variants: dict[str, Row]) -> Section:
    known = [name for name, item in variants.items() if item.get("monotonic") is not None]
    monotonic = [name for name in known if variants[name]["monotonic"]]
    near = [name for name in known if variants[name]["diagnosis"] == "exits and is near"]
    note = (
        "The rule compares a layer with the previous one; the oracle (near_final) with the last, which must be "
        "computed for it. Both shares are cumulative. Contraction is a layer's step over the previous one, "
        "alignment the cosine of that step with the way left to the last layer."
    )
    if known:
        both = len(set(monotonic) & set(near))
        note += (
            " By the paper, exits succeed where similarity to the last layer rises monotonically. It does in "
            f"{', '.join(monotonic) or 'none'}, {len(monotonic)} of {len(known)}; {both} of them exit and are "
            f"near, and {len(near) - both} of the others."
        )
    grids = [grid(LAYERS, item["layers"] or [], f"{name}: {item['diagnosis']}") for name, item in variants.items()]
    return Section("layers", "Layers", note, grids, ("neighbours", "stability", "contraction", "alignment"))


def _control(summary: dict[str, Any]) -> Section:
    rows = []
    for name, variant in summary["variants"].items():
        exited, sts = variant["exit"], variant["sts"]
        if exited:
            both = {**(variant.get("adaptive") or {}), **sts}
            gain = {key: both.get(f"{key}_gain") for key in ("similarity", "nn_at_10", "spearman")}
            ends = {f"{key}_ci95": both.get(f"{key}_gain_ci95") for key in gain}
            shared = {"variant": name, "layers": exited["expected_layers"]}
            rows += [
                {**exited, **shared, "way": "exited", "spearman": sts.get("spearman_exit")},
                {
                    **shared,
                    "way": "cut",
                    **(variant["truncation"] or {}),
                    "spearman": sts.get("spearman_truncated"),
                },
                {**shared, "way": "gain", **gain, **ends},
                {**shared, "way": "an oracle's gain", **{key: both.get(f"{key}_ceiling") for key in gain}},
            ]
    compared = [
        {
            "variant": name,
            "against": rival,
            "set": set_name,
            **modes["exit"],
            "difference_ci95": modes["exit"]["ci95"],
        }
        for name, variant in summary["variants"].items()
        for rival, comparison in (variant.get("rivals") or {}).items()
        for set_name, modes in (comparison.get("sts") or {}).items()
        if "exit" in modes and variant.get("role") != rival
    ]
    cut = "variant; =way; layers:2; similarity:4; NN@10=nn_at_10:4; STS=spearman:4"
    against = "variant; against; set; STS exited, less the other's full depth=difference:4; p=p_value"
    note = (
        "Early exit is worth its checks only where it beats the same network simply cut at its expected depth "
        "(between two layers: interpolated). The oracle sees the last layer and picks by similarity."
    )
    grids = [
        grid(cut, rows, words=2),
        grid(against, compared, "Pair by pair against the gate's controls", 3),
    ]
    return Section("control", "Against the same model cut, and against the controls", note, grids)


def _strategies(variants: dict[str, Row]) -> Section:
    def judged(row: Row) -> str:
        checks = dig(variants[row["variant"]], "gate", "checks") or []
        fails = would_fail(row, checks)
        if not row["deployable"]:
            return "cannot be deployed"
        return f"fails: {'; '.join(fails)}" if fails else "passes" if checks else "-"

    rows = [
        {**row, "time": wall_clock(variants[row["variant"]], row), "judged": judged(row)}
        for row in _rows(variants, "strategies")
    ]
    best = [
        {"variant": name, **point}
        for name, variant in variants.items()
        if (point := recommend(variant.get("sweep") or []))
    ]
    columns = f"variant; strategy; {FIGURES}; quality; time; the gate's bounds on these sentences=judged"
    note = (
        "Quality is Spearman over that of full depth. near_final needs the last layer; calibrated exits are those "
        "of `leap calibrate`. The last column holds each strategy's figures against the bounds that the gate has "
        "for exits and STS, without intervals. Time: median of a sentence; about: interpolated."
    )
    grids = [
        grid(columns, rows, words=2, last_words=True),
        grid(f"variant; theta=threshold:2; {FIGURES}; quality; p50 ms=ms_p50:2; speed-up=speed_up:2",
             [{"variant": name, **row} for name, variant in variants.items() for row in theta_rows(variant)],
             "The rule by its threshold theta, one sentence at a time"),
        grid(f"variant; theta=threshold:2; min_layer:0; patience:0; {FIGURES}", best,
             "Of all rules tried, the fewest layers that pass the paper's deployment checklist"),
    ]  # fmt: skip
    return Section("strategies", "Exit strategies and the calibrated mode", note, grids, ("quality",))


def theta_rows(variant: Row) -> Iterator[Row]:
    """Yield the rule at every theta that was timed: the sweep's figures by the variant's l_min and k, and time."""
    rule = variant.get("exit_rule") or {}
    swept = {
        row["threshold"]: row
        for row in variant.get("sweep") or []
        if all(row[key] == rule.get(key) for key in ("min_layer", "patience"))
    }
    for timed in variant.get("latency_by_threshold") or []:
        yield {**swept.get(timed["threshold"], {}), **timed}


def _training(summary: dict[str, Any]) -> Section:
    controls = [item for item in summary["variants"].values() if item.get("role") == "baseline"]
    usual = dig(controls[0], "training", "seconds") if controls else None
    rows = []
    for name, variant in summary["variants"].items():
        if record := variant.get("training"):
            added = record["seconds"] / usual - 1 if usual and record.get("seconds") else None
            rows.append({"variant": name, **record, "added": added})
    columns = "variant; steps:0; seconds:1; sentences a second=sentences_per_second:0; over the baseline=added"
    note = "The total loss by step. Variants minimise different objectives, so only the shape compares."
    return Section("training", "Training", note, [grid(columns, rows)], ("losses",))


def _sets(variants: dict[str, Row]) -> Section:
    rows, layers = [], []
    for name, variant in variants.items():
        for set_name, scores in variant["sts"]["sets"].items():
            if scores:
                ends = {"spearman_full_ci95": scores.get("ci95_full"), "spearman_exit_ci95": scores.get("ci95")}
                sides = {key.removeprefix("spearman_"): value for key, value in {**scores, **ends}.items()}
                rows.append({"variant": name, "set": f"{set_name}, Spearman", **sides})
        for set_name, scores in variant["retrieval"].items():
            if scores:
                sides = {key.removeprefix("ndcg_at_10_"): value for key, value in scores.items()}
                rows.append({"variant": name, "set": f"{set_name}, nDCG@10", "n": scores["n_queries"], **sides})
                layers += [{"variant": name, "set": set_name, **row} for row in scores.get("by_query_layer") or []]
    by_layer = (
        "variant; set; queries at layer=layer:0; own_index; teacher's index=teacher_index; both cut=both_exit"
    )
    note = "Queries exit: they leave early and search documents at full depth, so an index stays as it is."
    grids = [
        grid("variant; set; n:0; full depth=full; queries exit=query_exit; exited=exit", rows, words=2),
        grid(by_layer, layers, "nDCG@10 of queries cut at a layer", 2),
    ]
    return Section("sets", "Similarity and retrieval sets", note, grids)


def _latency(summary: dict[str, Any]) -> Section:
    rows = [{**row, "length": length_name(row)} for row in _rows(summary["variants"], "latency")]
    columns = (
        "variant; length; batch:0; path; p50 ms=ms_p50:2; p95 ms=ms_p95:2; layers=expected_layers:2; "
        "speed-up=speed_up:2; of the reduction=layer_reduction_realised:2; checks cost=monitoring_overhead"
    )
    note = (
        f"On {machine(summary)}: milliseconds hold for this machine only, ratios travel further. Speed-up is full "
        "depth's median over this row's, of the same length and batch. Monitored computes all layers and checks "
        "each: what the checks cost where nobody leaves."
    )
    return Section("latency", "Latency", note, [grid(columns, rows, words=2)], ("latency",))


def length_name(row: Row) -> str:
    length = row.get("length", "sentences")
    return length if isinstance(length, str) else f"{length} tokens"


def _spread(summary: dict[str, Any]) -> Grid:
    rows = [
        {"variant": name, "figure": figure, **spread}
        for name, variant in summary["variants"].items()
        for figure, spread in (variant.get("spread") or {}).items()
        if len(summary["run"]["seeds"]) > 1
    ]
    columns = "variant; figure; mean:4; standard deviation=std:4; lowest=low:4; highest=high:4; seeds=n:0"
    return grid(columns, rows, words=2)


def _studies(studies: Studies, asked: dict[str, str]) -> Section:
    grids: list[Grid] = []
    for name, study in studies.items():
        models = [(content, next(iter(content["seeds"].values()))) for content in study["variants"].values()]
        rows = []
        for content, first in models:
            means = {key: mean["mean"] for key, mean in content["over_seeds"].items()}
            ends = {f"{key}_ci95": mean.get("ci95") for key, mean in content["over_seeds"].items()}
            rows.append({"variant": content["description"], "depth": first["depth"], **means, **ends})
        grids.append(grid(STUDY, rows, f"{name}: {asked.get(name, '')}"))
        for content, first in models:
            for keys, what, columns in FURTHER:
                further = [row for key in keys for row in first.get(key) or []]
                grids.append(grid(columns, further, f"{content['description']}: {what}"))
    waiting = [f"`make study-{name}` ({text})" for name, text in asked.items() if name not in studies]
    note = "Small trainings of their own, one question each; 95 % intervals over the study's seeds."
    note += f" Not run yet: {', '.join(waiting)}." if waiting else ""
    for study in studies.values():
        note += "".join(f" {name} is left out: {why}." for name, why in (study.get("left_out") or {}).items())
    return Section("studies", "Studies", note, grids, ("pareto", "fixed_depth"))


def _run(summary: dict[str, Any]) -> Grid:
    run, hardware = summary["run"], summary["hardware"] or {}
    rows = {
        "profile, seeds": f"{summary['profile']}; {', '.join(map(str, run['seeds']))}",
        "teacher": f"{run['teacher']['source']} ({run['teacher']['kind']})",
        "exit rule (a variant may differ)": ", ".join(f"{key} {value}" for key, value in run["exit"].items()),
        "sentences": "; ".join(f"{name} {count:,}" for name, count in (run["data"] or {}).items()),
        "sentences by source": "; ".join(f"{name} {count:,}" for name, count in run["sources"].items()),
        "machine": machine(summary),
        "software": ", ".join(f"{key} {hardware.get(key)}" for key in ("python", "torch", "transformers")),
        "commit": f"{hardware.get('commit') or 'outside git'}{' with changes' if hardware.get('dirty') else ''}",
    }
    variants = {f"variant {name}": item["description"] for name, item in summary["variants"].items()}
    return Grid(("", ""), list((rows | variants).items()), last_words=True)
