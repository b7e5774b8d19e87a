"""Any one setting of another type is reported by its full name, and so is every mistake at once."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from leap.core.errors import UserError
from leap.core.settings import parse_settings
from leap.core.settings.profiles import compose

PROJECT = Path(__file__).parents[2]
CONTENT = YAML(typ="safe").load((PROJECT / "params.yaml").read_text())
CONTENT["variants"]["fixed_depth"] = {"description": "six layers", "student": {"layers": 6}}
CONTENT["gate"]["fixed_depth"] = "fixed_depth"
# What each type of a setting must not be; a null is a value of its own in several places.
WRONG: dict[type, tuple[Any, ...]] = {
    bool: ("perhaps", 3, [True], {"a": 1}),
    int: ("many", True, 1.5, "3", [1], {"a": 1}),
    float: ("much", True, "0.5", [1.0], {"a": 1}),
    str: (7, True, 0.5, ["a"], {"a": 1}),
    list: ("one", 3, {"a": 1}),
    dict: ("text", 3, ["a"]),
    type(None): ({"a": 1}, ["a"]),
}


def keys(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every setting's path, mappings and lists themselves too."""
    if above:
        yield above
    if isinstance(content, list):
        content = dict(enumerate(content))
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from keys(value, (*above, key))


def changed(path: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(CONTENT)
    block = content
    for part in path[:-1]:
        block = block[part]
    block[path[-1]] = value
    return content


def at(path: tuple[Any, ...]) -> Any:
    result = CONTENT
    for part in path:
        result = result[part]
    return result


def report(content: Any) -> str:
    with pytest.raises(UserError) as caught:
        parse_settings(content, "params.yaml")
    return str(caught.value)


def test_any_setting_of_another_type_is_reported_by_its_full_name() -> None:
    paths = list(keys(CONTENT))
    assert len(paths) > 300
    for number, path in enumerate(paths):
        wrong = WRONG[type(at(path))]
        name = ".".join(map(str, path))
        value = wrong[number % len(wrong)]
        message = report(changed(path, value))
        # A mapping that lacks its kind or its keys is reported by those; its own name opens each line.
        assert f"  - {name}: " in message or f"  - {name}." in message, (name, value, message)


def test_an_unknown_key_is_reported_wherever_it_stands() -> None:
    blocks = [path for path in keys(CONTENT) if isinstance(at(path), dict)]
    for path in [(), *blocks]:
        content = copy.deepcopy(CONTENT)
        block = content
        for part in path:
            block = block[part]
        block["surprising"] = 1
        name = ".".join(map(str, (*path, "surprising")))
        assert f"  - {name}: " in report(content), name


@pytest.mark.parametrize("profile", ["local", "paper"])
def test_the_other_profiles_are_as_strict(profile: str) -> None:
    with pytest.raises(UserError, match=r"train\.epochs: .*found 'three'"):
        compose(profile, PROJECT / "profiles", ["train.epochs=three"])


ADAPTIVE = "studies.objectives.variants.adaptive_layer.loss"
# Each of these alone, and all at once: the key that the one message must have.
MISTAKES = [
    ("train.batch_size", 0, "train.batch_size: Input should be greater than or equal to 2 (found 0)"),
    ("evaluation.batch_size", 0, "evaluation.batch_size: Input should be greater than or equal to 1"),
    ("latency.batch_sizes", [1, 0], "latency.batch_sizes.1: Input should be greater than or equal to 1"),
    ("exit.threshold", 1.5, "exit.threshold: Input should be less than or equal to 1 (found 1.5)"),
    ("exit.min_layer", 13, "exit: min_layer 13 is above the depth, student.layers 12"),
    ("exit.patience", 12, "exit: patience 12 must be below the depth, student.layers 12"),
    ("variants.fixed_depth.student.layers", 14, "variants.fixed_depth.student.layers: 14 is above"),
    ("variants.elastic.exit", {"min_layer": 20}, "variants.elastic.exit: min_layer 20 is above"),
    ("student.heads", 7, "student.heads: width 128 is not a multiple of heads 7 (found 7)"),
    ("loss.ramp", [0.6, 0.1], "loss.ramp: must rise (found [0.6, 0.1])"),
    ("loss.surprising", 1, "loss.surprising: unknown key"),
    ("train.max_length", 256, "train.max_length: 256 is above student.max_length 128"),
    ("train.learning_rate", "fast", "train.learning_rate: Input should be a valid number (found 'fast')"),
    ("train.processes", 3, "train.processes: batch_size 64 is not a multiple of processes 3"),
    ("data.max_characters", 21, None),
    ("data.min_characters", 30, "data.max_characters: 21 must be above data.min_characters 30"),
    ("validation.min_rows", 9000, "validation.min_rows: 9000 is above data.max_sentences 5000"),
    ("evaluation.primary_set", "stsb", "evaluation.primary_set: 'stsb' is not a block of similarity"),
    ("evaluation.length_bins", [8, 8], "evaluation.length_bins: must ascend (found [8, 8])"),
    ("gate.baseline", "nobody", "gate.baseline: 'nobody' is not a block of variants"),
    ("gate.checks.exit_rate.at_least", 0.5, "gate.checks.exit_rate.at_most: give exactly one of above"),
    ("gate.checks.nn_at_10.metric", "layers.13.rate", "gate.checks.nn_at_10.metric: layers.13.rate is"),
    ("gate.checks.retrieval.metric", "retrieval.scifact.drop", "gate.checks.retrieval.metric: 'scifact' of"),
    ("retrieval.docstrings.documents", 20, "retrieval.docstrings.documents: documents must be at least"),
    ("seeds", [1, 1], "seeds: names a seed twice (found [1, 1])"),
    ("variants.leap.loss", {"heads": True, "beta": 0, "epsilon": 0}, "variants.leap.loss.heads: true, but the"),
    ("variants.elastic.student.start.frozen", 6, "variants.elastic.student.start.frozen: 6 leaves none of the 6"),
    (
        "variants.leap.loss",
        {"heads": True, "beta": 0, "late_from": 12},
        "variants.leap.loss.heads: true, but the terms that see the heads are all 0",
    ),
    (
        "variants.leap.loss",
        {"heads": True, "heads_start": "ridge"},
        "variants.leap.loss.heads_start: ridge maps the teacher's layers to its last one, which needs",
    ),
    (f"{ADAPTIVE}.n_layers_per_step", 13, f"{ADAPTIVE}.n_layers_per_step: 13 is above the depth"),
]  # fmt: skip


def test_all_of_them_in_one_message() -> None:
    content = copy.deepcopy(CONTENT)
    expected = []
    for key, value, message in MISTAKES:
        if (key, value) == ("train.processes", 3) or key == "variants.leap.loss":
            continue  # hidden by the batch size of 0; one block's mistakes, each alone
        *parents, last = key.split(".")
        block = content
        for part in parents:
            block = block[part]
        block[last] = value
        expected += [message] if message else []
    message = report(content)
    for line in expected:
        assert f"  - {line}" in message, (line, message)
    assert message.startswith(f"params.yaml has {message.count('  - ')} mistake(s):")
    others = [line for line in message.split("  - ")[1:] if not line.startswith(tuple(expected))]
    # Studies of fewer layers have the patience's mistake too, each under its own name.
    assert {line.partition(":")[2].strip() for line in others} <= {
        f"patience 12 must be below the depth, student.layers {depth}" for depth in range(1, 12)
    }


@pytest.mark.parametrize(("key", "value", "message"), [case for case in MISTAKES if case[2]])
def test_each_of_them_alone(key: str, value: Any, message: str) -> None:
    content = changed(tuple(key.split(".")), value)
    if key == "data.min_characters":
        content["data"]["max_characters"] = 21
    assert f"  - {message}" in report(content)
