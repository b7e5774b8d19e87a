"""The findings of a run in words: the report's first screen, `leap summary`, and the README's tables.

Every figure is one of reports/summary.json; nothing is said where there is none.
"""

import operator
import re
import textwrap
from typing import Any

from leap.core.environment import hardware
from leap.core.grid import Grid, shown
from leap.gate.verdict import refuses
from leap.report.summary import dig, mean_ndcg

Variant = dict[str, Any]
Row = dict[str, Any]

COLUMNS = ("variant", "layers", "STS full \N{RIGHTWARDS ARROW} exit", "NN@10", "verdict")
# What a metric of the gate is called, whether it is a share, and what helps where it fails.
LATER = "exits later (exit.min_layer, exit.threshold; nothing is trained again)"
QUALITY = f"{LATER}, or more train.epochs"
QUERIES = "a later exit.query_layer, or exit.min_layer where there is none (nothing is trained again)"
ANCHORED = "a higher loss.anchor"
SOONER = "earlier exits (a lower exit.threshold or exit.min_layer; nothing is trained again)"
SOONER_QUERIES = "a lower exit.query_layer (nothing is trained again)"
IDLE = "an idle machine: `dvc repro -sf benchmark_latency`"
METRICS: tuple[tuple[str, str, bool, str], ...] = (
    (r"exit\.rate", "sentences that leave early", True, SOONER),
    (r"exit\.similarity", "similarity to full depth", False, QUALITY),
    (r"exit\.nn_at_10", "NN@10", False, QUALITY),
    (r"sts\.(.*\.)?drop_vs_full", "STS lost", True, QUALITY),
    (
        r"sts\.(.*\.)?drop_vs_baseline",
        "STS lost against the baseline",
        True,
        "more train.epochs, a lower loss.beta",
    ),
    (r"sts\.(.*\.)?adaptive_gain_vs_fixed_depth", "STS gained over the fixed depth", False, QUALITY),
    (r"retrieval\.(?P<set>[^.]*)\.query_drop", "nDCG@10 lost on {set} where only queries exit", True, QUERIES),
    (r"retrieval\.(?P<set>[^.]*)\.drop_vs_start", "nDCG@10 lost on {set} at full depth", True, ANCHORED),
    (r"retrieval\.(?P<set>[^.]*)\.old_index_drop", "nDCG@10 lost on {set} in the old index", True, ANCHORED),
    (r"retrieval\.(?P<set>[^.]*)\..*drop.*", "nDCG@10 lost on {set}", True, QUALITY),
    (r"sts\.(.*\.)?drop_vs_start", "STS lost at full depth", True, ANCHORED),
    (r"start\.similarity", "similarity of full depth to the model before", False, ANCHORED),
    (r"latency\.query_speed_up", "queries' speed-up", False, SOONER_QUERIES),
    (r"latency\.speed_up", "speed-up", False, IDLE),
)
SIGNS = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}
HOLDS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def figures(variant: Variant) -> dict[str, Any]:
    """The headline figures of a variant or one seed, named as in `dvc metrics show`; null if missing."""
    return {
        "layers": dig(variant, "exit", "expected_layers"),
        "exit_rate": dig(variant, "exit", "rate"),
        "similarity": dig(variant, "exit", "similarity"),
        "nn_at_10": dig(variant, "exit", "nn_at_10"),
        "sts_full": dig(variant, "sts", "spearman_full"),
        "sts_exit": dig(variant, "sts", "spearman_exit"),
        "ndcg_full": mean_ndcg(variant, "full"),
        "ndcg_query": mean_ndcg(variant, "query_exit"),
        "ndcg_exit": mean_ndcg(variant, "exit"),
        "speed_up": variant["speed_up"],
        "query_speed_up": variant.get("query_speed_up"),
        "passed": dig(variant, "gate", "passed"),
    }


def verdict_word(variant: Variant) -> str:
    passed = dig(variant, "gate", "passed")
    if variant.get("role"):
        return "control"
    return "not judged" if passed is None else "passes" if passed else "refused"


def failures(variant: Variant) -> list[Row]:
    return [check for check in dig(variant, "gate", "checks") or [] if refuses(check)]


def reason(check: Row) -> str:
    """Say why a check failed, with its bound: "STS lost 4.0 % (at most 3 %)"."""
    label, is_share, _ = _metric(check["metric"])
    sign, bound = check["bound"].split()[0], check["threshold"]

    def number(value: float) -> str:
        if is_share:
            return f"{100 * value:.3g} %"
        return f"{value:.3g}x" if label.endswith("speed-up") else f"{value:.3g}"

    if check["value"] is None:
        return f"{label} not measured"
    text = f"{label} {number(check['value'])}"
    if check["interval"] and (HOLDS[sign](check["value"], bound) or _undecided(check)):
        low, high = (number(end) for end in check["interval"])
        text += f", 95 % interval {low} to {high}"
    return f"{text} ({SIGNS[sign]} {number(bound)})"


def overview(summary: dict[str, Any], reasons: bool = True) -> Grid:
    """The table of five columns: a row a variant that was measured, each refusal with its reasons if asked."""
    rows = []
    for name, variant in summary["variants"].items():
        numbers = figures(variant)
        if numbers["layers"] is None and numbers["sts_full"] is None:
            continue
        sts = f"{shown(numbers['sts_full'])} \N{RIGHTWARDS ARROW} {shown(numbers['sts_exit'])}"
        why = f": {reasons_of(variant)}" if reasons and reasons_of(variant) else ""
        rows.append([name, layers_of(variant), sts, shown(numbers["nn_at_10"]), verdict_word(variant) + why])
    return Grid(COLUMNS, rows, last_words=True)


def reasons_of(variant: Variant) -> str:
    """Say why a variant is refused, or what a control is for; empty for one that passes."""
    why = "; ".join(reason(check) for check in failures(variant))
    if variant.get("role"):
        purpose = f"gate.{variant['role']}, never promoted"
        return f"{purpose}; as a candidate it would be refused for {why}" if why else purpose
    return why


def layers_of(variant: Variant) -> str:
    """ "6.01 of 12", and "6.00 of 6, queries 4" where queries leave at a layer of their own."""
    layers = f"{shown(dig(variant, 'exit', 'expected_layers'), 2)} of {shown(variant['depth'], 0)}"
    queries = variant.get("query_layer")
    return layers if queries is None else f"{layers}, queries {shown(queries, 0)}"


def best(summary: dict[str, Any]) -> str | None:
    """Return the variant that passes with the best primary metric; null where none passes."""
    passing = [name for name, item in summary["variants"].items() if verdict_word(item) == "passes"]
    return max(
        passing,
        key=lambda name: dig(summary["variants"][name], "gate", "primary_metric", "value") or 0.0,
        default=None,
    )


def finding(summary: dict[str, Any]) -> str:
    """Say in two sentences what a user gains."""
    name = best(summary)
    if name is None:
        return _nothing_passes(summary)
    variant = summary["variants"][name]
    if variant.get("query_layer") is not None:
        return _finding_of_queries(name, summary)
    numbers, interval = figures(variant), variant.get("speed_up_ci95")
    gain = f"{name} passes every check: a sentence takes {layers_of(variant)} layers"
    if numbers["speed_up"] is not None:
        ends = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
        gain += f" and is {numbers['speed_up']:.2f}{ends} times faster on this machine ({machine(summary)})"
    sts = f"STS {shown(numbers['sts_full'])} becomes {shown(numbers['sts_exit'])}"
    queries, both = (_change(numbers, mode) for mode in ("ndcg_query", "ndcg_exit"))
    if queries is not None:
        rest = f" ({both} where documents leave early too)" if both is not None else ""
        return (
            f"{gain}, and {sts}. With queries that leave early in an index built at full depth, which stays "
            f"as it is, nDCG@10 {queries}{rest}."
        )
    retrieval = f", nDCG@10 {both} where queries and documents leave early" if both is not None else ""
    return f"{gain}. {sts}{retrieval}."


def _finding_of_queries(name: str, summary: dict[str, Any]) -> str:
    """Say what a user gains whose queries leave at a layer of their own, documents being at full depth."""
    variant = summary["variants"][name]
    numbers, interval = figures(variant), variant.get("query_speed_up_ci95")
    gain = f"{name} passes every check: queries leave at layer {variant['query_layer']} of {variant['depth']}"
    if numbers["query_speed_up"] is not None:
        ends = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
        gain += f", {numbers['query_speed_up']:.2f}{ends} times faster on this machine ({machine(summary)})"
    change = _change(numbers, "ndcg_query")
    if change is not None:
        gain += f", and nDCG@10 {change}"
    old = _old_index(variant)
    index = (
        "" if old is None else f" In the index of the model before, queries keep {100 * old:.1f} % of its nDCG@10."
    )
    return f"{gain}. Documents are at full depth: their index stays as it is.{index}"


def _old_index(variant: Variant) -> float | None:
    """The share of the nDCG@10 of the model before that early queries reach in its index, over all collections."""
    if variant.get("start") is None:
        return None
    indexes = [dig(item, "teacher_index") or {} for item in variant["retrieval"].values()]
    early, before = ([dig(item, f"ndcg_at_10_{mode}") for item in indexes] for mode in ("query_exit", "teacher"))
    return None if None in early + before or not before else sum(early) / sum(before)


def _change(numbers: dict[str, Any], mode: str) -> str | None:
    full, exited = numbers["ndcg_full"], numbers[mode]
    if not full or exited is None:
        return None
    drop = 1 - exited / full
    return f"{'loses' if drop >= 0 else 'gains'} {100 * abs(drop):.1f} %"


def _nothing_passes(summary: dict[str, Any]) -> str:
    words = {name: verdict_word(variant) for name, variant in summary["variants"].items()}
    refused = [name for name, word in words.items() if word == "refused"]
    if not refused:
        waiting = [name for name, word in words.items() if word == "not judged"]
        return f"Nothing is judged yet ({', '.join(waiting)}). `dvc repro` trains, measures and judges."
    fewest = min(refused, key=lambda name: len(failures(summary["variants"][name])))
    why = "; ".join(reason(check) for check in failures(summary["variants"][fewest]))
    return (
        f"No variant passes the gate, so full depth is what to serve. The nearest, {fewest}, is refused "
        f"because of: {why}."
    )


def against_smaller(summary: dict[str, Any]) -> str | None:
    """Compare the best variant with the student that simply has fewer layers; null where unmeasured."""
    name = best(summary)
    rivals = [item for item, variant in summary["variants"].items() if variant.get("role") == "fixed_depth"]
    if name is None or not rivals:
        return None
    rival = rivals[0]
    gain = dig(summary["variants"][name], "rivals", "fixed_depth", "sts", summary["primary_set"], "exit")
    if not gain or not gain.get("ci95"):
        return None
    low, high = gain["ci95"]
    word = "better" if low > 0 else "worse" if high < 0 else "not shown to differ"
    layers = shown(summary["variants"][rival]["depth"], 0)
    counts = dig(summary["variants"][name], "exit", "layers") or {}
    layer, most = max(counts.items(), key=operator.itemgetter(1), default=("", 0))
    share = most / max(sum(counts.values()), 1)
    same = f" {share:.0%} of the sentences leave at layer {layer}: it costs what {layer} layers cost."
    return (
        f"Why not simply a smaller model?{same if share > 0.95 else ''} {rival}, {layers} layers trained for that "
        f"depth, is the comparison: STS of {name} less its own is {gain['difference']:+.3f} "
        f"[{low:+.3f}, {high:+.3f}], {word}."
    )


def next_steps(summary: dict[str, Any]) -> list[str]:
    """List what to try next: serve what passes, cheaper rules that pass, what helps against a refusal."""
    steps = []
    name = best(summary)
    if name is not None:
        folder = f"models/{name}-{next(iter(summary['variants'][name]['seeds']))}"
        steps.append(f'{name}: `LeapEncoder("{folder}")`, or the champion of the registry (`make ui`).')
    for each, variant in summary["variants"].items():
        if variant.get("role"):
            continue
        point = cheapest_rule(variant)
        own = dig(variant, "exit", "expected_layers")
        refused = verdict_word(variant) == "refused"
        helps = dict.fromkeys(_helps(check) for check in failures(variant))
        by_rule = helps.keys() <= {SOONER, QUALITY, IDLE}  # not what queries lose, nor full depth
        if point and own is not None and by_rule and (refused or point["expected_layers"] < own - 0.05):
            rule = f"-S exit.threshold={point['threshold']} -S exit.min_layer={point['min_layer']}"
            steps.append(
                f"{each}: {point['expected_layers']:.2f} layers keep to the gate's bounds on these sentences with "
                f"`dvc exp run {rule} -S exit.patience={point['patience']}`; nothing is trained again."
            )
        elif refused and not _of_one_depth(variant):
            steps.append(f"{each}: {'; '.join(helps)}.")
    return steps


def _of_one_depth(variant: Variant) -> bool:
    """Tell whether nothing leaves before the last layer by rule: what others are compared with, no candidate."""
    leaves = dig(variant, "exit", "rate") != 0 or variant.get("query_layer") is not None
    return not leaves and dig(variant, "exit_rule", "min_layer") >= variant["depth"]


def cheapest_rule(variant: Variant) -> Row | None:
    """Find the rule of fewest layers that would pass the gate's checks on the same sentences, of those tried."""
    checks = dig(variant, "gate", "checks") or []
    points = [point for point in variant.get("sweep") or [] if checks and not would_fail(point, checks)]
    return min(points, key=lambda point: (point["expected_layers"], -point["similarity"]), default=None)


def would_fail(row: Row, checks: list[Row]) -> list[str]:
    """List the checks that a row of `strategies` or `sweep` would not pass, by figures without intervals."""
    quality = row.get("quality")
    values = {
        "exit.rate": row["rate"],
        "exit.similarity": row["similarity"],
        "exit.nn_at_10": row["nn_at_10"],
        "sts.drop_vs_full": None if quality is None else 1 - quality,
    }
    judged = {check["metric"]: check for check in checks if check["metric"] in values}
    return [
        reason({**check, "value": values[metric], "interval": None})
        for metric, check in judged.items()
        if values[metric] is None or not HOLDS[check["bound"].split()[0]](values[metric], check["threshold"])
    ]


def machine(summary: dict[str, Any]) -> str:
    """Name the machine on which the latency was measured."""
    return hardware(summary["hardware"]) if summary["hardware"] else "a machine that is not known yet"


def text(summary: dict[str, Any]) -> str:
    """Put the first screen into a terminal's lines: `leap summary`."""
    whys = {name: reasons_of(variant) for name, variant in summary["variants"].items()}
    lines = [finding(summary), "", *overview(summary, reasons=False).text().splitlines(), ""]
    lines += [f"{name}, {verdict_word(summary['variants'][name])}: {why}" for name, why in whys.items() if why]
    lines += [f"next: {step}" for step in next_steps(summary)]
    return "\n".join(part for line in lines for part in (wrap(line) if ": " in line else [line]))


def wrap(line: str, indent: str = "") -> list[str]:
    """Break a text into lines of a terminal's width."""
    return textwrap.wrap(line, 100, initial_indent=indent, subsequent_indent=indent or "  ")


def _undecided(check: Row) -> bool:
    """Tell whether the bound lies within the interval: another measurement may say otherwise."""
    return bool(check["interval"]) and check["interval"][0] <= check["threshold"] <= check["interval"][1]


def _helps(check: Row) -> str:
    helps = _metric(check["metric"])[2]
    # A busy machine makes the interval wide, and then nothing about the model is known.
    return f"{IDLE}, or {helps}" if helps == SOONER_QUERIES and _undecided(check) else helps


def _metric(metric: str) -> tuple[str, bool, str]:
    for pattern, label, is_share, helps in METRICS:
        match = re.fullmatch(pattern, metric)
        if match:
            return label.format(**match.groupdict()), is_share, helps
    return metric, False, "see docs/architecture.md"
