"""Contradictions between blocks, read from the content itself: a mistake elsewhere hides none.

Every function takes plain content and passes over what is missing or of another type: that is reported as a
mistake of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leap.core.project import Project
from leap.core.sample_sizes import fewest_to_calibrate, surely_held_out

Content = dict[str, Any]


def contradictions(content: Content) -> list[str]:
    """Yield what does not fit together in params.yaml, variants and their blocks aside, each with its key."""
    return [
        *_named_sets(content),
        *_named_variants(content),
        *_folder_of_data(content),
        *_sizes_of_data(content),
        *_fixed_depth(content),
        *_calibration_mistakes(content),
    ]


def variant_contradictions(blocks: Content, ready: bool) -> list[str]:
    """List what does not fit together in the blocks of one variant, each with its key.

    `ready` is for a ready checkpoint, whose depth is known, and compared, only when it loads.
    """
    mistakes = []
    longest, trained = number(blocks, "student.max_length"), number(blocks, "train.max_length")
    if longest is not None and trained is not None and trained > longest:
        mistakes.append(f"train.max_length: {trained} is above student.max_length {longest}")
    depth = number(blocks, "student.layers")
    if ready or depth is None:
        return mistakes
    anchor, start = at(blocks, "loss.anchor"), at(blocks, "student.start.kind")
    if isinstance(anchor, float | int) and anchor > 0 and start is not None and start != "teacher":
        mistakes.append(
            f"loss.anchor: {anchor} keeps full depth near the weights that the training starts from, which needs "
            f"student.start {{kind: teacher}}, not {start}"
        )
    frozen = number(blocks, "student.start.frozen")
    if frozen is not None and frozen >= depth:
        mistakes.append(f"student.start.frozen: {frozen} leaves none of the {depth} layers to train")
    mistakes += _heads(blocks, depth)
    minimum, gap = number(blocks, "exit.min_layer"), number(blocks, "exit.patience")
    if minimum is not None and minimum > depth:
        mistakes.append(f"exit: min_layer {minimum} is above the depth, student.layers {depth}")
    if gap is not None and gap >= depth:
        mistakes.append(f"exit: patience {gap} must be below the depth, student.layers {depth}")
    queries = number(blocks, "exit.query_layer")
    if queries is not None and queries > depth:
        mistakes.append(f"exit: query_layer {queries} is above the depth, student.layers {depth}")
    drawn = number(blocks, "loss.n_layers_per_step")
    if drawn is not None and drawn > depth:
        mistakes.append(f"loss.n_layers_per_step: {drawn} is above the depth, student.layers {depth}")
    return mistakes


def _heads(blocks: Content, depth: int) -> Iterator[str]:
    """Exit heads that no term would train, or whose start the student does not have."""
    if at(blocks, "loss.heads") is not True:
        return
    weights = {key: at(blocks, f"loss.{key}") for key in ("beta", "epsilon", "exit_contrast")}
    if at(blocks, "loss.beta_teacher") == 0 and at(blocks, "loss.beta_student") == 0:
        weights["beta"] = 0
    late_from = number(blocks, "loss.late_from")
    if late_from is not None and late_from >= depth:  # no layer is late
        weights["epsilon"] = 0
    if all(weight is None or weight == 0 for weight in weights.values()):
        yield (
            "loss.heads: true, but the terms that see the heads are all 0: give loss.beta, loss.exit_contrast or "
            "loss.epsilon a weight, or leave the heads out (`leap calibrate MODEL --heads` fits some afterwards)"
        )
    start = at(blocks, "student.start.kind")
    if at(blocks, "loss.heads_start") == "ridge" and start is not None and start != "teacher":
        yield (
            "loss.heads_start: ridge maps the teacher's layers to its last one, which needs student.start "
            f"{{kind: teacher}}, not {start}"
        )


def number(content: Any, key: str) -> int | None:
    """Return the whole number at a dotted key, None where there is none."""
    value = at(content, key)
    return value if type(value) is int else None


def at(content: Any, key: str) -> Any:
    """Return the value at a dotted key, None where there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def block(content: Any, key: str) -> Content:
    """Return the mapping at a dotted key, empty where there is none."""
    value = at(content, key)
    return value if isinstance(value, dict) else {}


def _named_sets(content: Content) -> Iterator[str]:
    primary = at(content, "evaluation.primary_set")
    similarity = block(content, "similarity")
    if isinstance(primary, str) and similarity and primary not in similarity:
        yield (
            f"evaluation.primary_set: {primary!r} is not a block of similarity ({', '.join(map(str, similarity))})"
        )
    for key, check in block(content, "gate.checks").items():
        metric = at(check, "metric")
        named = metric.split(".") if isinstance(metric, str) else []
        kind = {"sts": "similarity", "retrieval": "retrieval"}.get(named[0]) if len(named) > 2 else None
        sets = block(content, kind) if kind else {}
        if sets and named[1] != "*" and named[1] not in sets:
            yield (
                f"gate.checks.{key}.metric: {named[1]!r} of {metric} is not a block of {kind} "
                f"({', '.join(map(str, sets))})"
            )
        depth = number(content, "student.layers")
        if named[:1] == ["layers"] and len(named) > 1 and named[1].isdigit() and depth is not None:
            layer = int(named[1])
            if not 1 <= layer <= depth:
                yield f"gate.checks.{key}.metric: {metric} is of layer {layer}, student.layers is {depth}"


def _named_variants(content: Content) -> Iterator[str]:
    variants = block(content, "variants")
    for key in ("baseline", "fixed_depth"):
        name = at(content, f"gate.{key}")
        if isinstance(name, str) and variants and name not in variants:
            yield f"gate.{key}: {name!r} is not a block of variants ({', '.join(map(str, variants))})"


def _folder_of_data(content: Content) -> Iterator[str]:
    """A folder that `extract` reads must not hold, or lie in, what the pipeline writes: DVC refuses the circle."""
    named = at(content, "data.folder")
    if not isinstance(named, str) or not named or "\0" in named:
        return
    folder = Path(named).resolve()
    for output in Project(Path()).outputs:
        place = output.resolve()
        if place.is_relative_to(folder) or folder.is_relative_to(place):
            relation = "is" if place == folder else "holds" if place.is_relative_to(folder) else "lies in"
            yield (
                f"data.folder: {named} {relation} {output}, which the pipeline writes: name a folder of your "
                "own, for example inputs"
            )
            return


def _sizes_of_data(content: Content) -> Iterator[str]:
    shortest, longest = number(content, "data.min_characters"), number(content, "data.max_characters")
    if shortest is not None and longest is not None and longest <= shortest:
        yield (
            f"data.max_characters: {longest} must be above data.min_characters {shortest}: sentences are "
            "longer than the one and not longer than the other"
        )
    most, least = number(content, "data.max_sentences"), number(content, "validation.min_rows")
    if most is not None and least is not None and most < least:
        yield f"validation.min_rows: {least} is above data.max_sentences {most}, so no sample could pass"


def _fixed_depth(content: Content) -> Iterator[str]:
    """The rival of fixed depth is to be shallower than what it is compared with."""
    name, depth = at(content, "gate.fixed_depth"), number(content, "student.layers")
    fixed = number(content, f"variants.{name}.student.layers") if isinstance(name, str) else None
    if fixed is not None and depth is not None and fixed > depth:
        yield (
            f"variants.{name}.student.layers: {fixed} is above student.layers {depth}: gate.fixed_depth "
            "names a student that is cut, not a deeper one"
        )


def _calibration_mistakes(content: Content) -> Iterator[str]:
    """Calibration needs held-out sentences, and as many as its risk, keep and confidence demand."""
    if "data" not in content:
        return
    share, most = at(content, "data.held_out") or 0.0, number(content, "data.max_sentences")
    shared = at(content, "exit.calibration")
    asked = {"exit.calibration": shared}
    for name, variant in block(content, "variants").items():
        own = block(variant, "exit").get("calibration")
        if own is not None:
            asked[f"variants.{name}.exit.calibration"] = (
                {**(shared or {}), **own} if isinstance(own, dict) else own
            )
    for key, calibration in asked.items():
        if calibration is None:
            continue
        if not share:
            yield f"{key}: it needs sentences, but data.held_out is 0"
            continue
        risk, confidence, keep = (at(calibration, name) for name in ("risk", "confidence", "keep"))
        if most is None or not all(
            isinstance(value, float) and 0 < value < 1 for value in (share, risk, confidence, keep)
        ):
            continue
        sure, least = surely_held_out(most, share), fewest_to_calibrate(risk, confidence, keep)
        if sure < least:
            yield (
                f"{key}: risk {risk}, keep {keep} at confidence {confidence} needs {least} held-out sentences, "
                f"and data.held_out {share} of data.max_sentences {most} surely gives only {sure}: raise one of "
                "the two, or demand less"
            )
