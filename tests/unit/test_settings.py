"""The settings: every mistake at once, each with its key, and what DVC sees."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from leap.core.errors import UserError
from leap.core.settings import merge, parse_settings, read_settings

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def content() -> Any:
    return YAML(typ="safe").load((PROJECT / "params.yaml").read_text())


def mistakes(content: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_settings(content, "params.yaml")
    head, *lines = str(caught.value).splitlines()
    assert head == f"params.yaml has {len(lines)} mistake(s):"
    return [line.removeprefix("  - ") for line in lines]


def test_all_mistakes_are_listed_at_once_with_their_keys(content: Any) -> None:
    content["loss"]["betta"] = 1
    content["train"]["batch_size"] = 0
    content["student"]["heads"] = 7
    content["data"]["sources"]["docstrings"]["packages"] = []
    content["variants"]["leap"]["loss"] = {"margin": "square"}
    del content["teacher"]["sha256"]
    result = mistakes(content)
    for expected in (
        "loss.betta: unknown key",
        "train.batch_size: Input should be greater than or equal to 2 (found 0)",
        "student.heads: width 128 is not a multiple of heads 7",
        "data.sources.docstrings.packages: List should have at least 1 item",
        "variants.leap.loss.margin: Input should be 'sigmoid', 'softplus' or 'hinge' (found 'square')",
        "teacher.sha256: Field required",
    ):
        assert any(line.startswith(expected) for line in result), (expected, result)
    assert len(result) == 6


def test_a_password_in_the_trackers_uri_is_refused_and_not_repeated(content: Any) -> None:
    content["tracking"]["uri"] = "https://me:hunter2@mlflow.example.org"
    (result,) = mistakes(content)
    assert result.startswith("tracking.uri: holds a password, which git and DVC would keep: set MLFLOW_TRACKING")
    assert "hunter2" not in result
    content["tracking"]["uri"] = "https://me@mlflow.example.org"
    parse_settings(content, "params.yaml")


def test_contradictions_between_blocks_are_listed_at_once_too(content: Any) -> None:
    content["variants"]["elastic"]["exit"] = {"min_layer": 13, "patience": 12}
    content["train"]["max_length"] = 256
    content["gate"]["baseline"] = "nobody"
    assert mistakes(content) == [
        "gate.baseline: 'nobody' is not a block of variants (baseline, leap, elastic)",
        "train.max_length: 256 is above student.max_length 128",
        "variants.elastic.exit: min_layer 13 is above the depth, student.layers 6",
        "variants.elastic.exit: patience 12 must be below the depth, student.layers 6",
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exit.threshold", 1.5, "exit.threshold: Input should be less than or equal to 1"),
        ("evaluation.primary_set", "stsb", "evaluation.primary_set: 'stsb' is not a block of similarity"),
        ("gate.baseline", "nobody", "gate.baseline: 'nobody' is not a block of variants"),
        ("data.held_out", 0.0, "exit.calibration: it needs sentences, but data.held_out is 0"),
        ("data.max_sentences", 2000, "validation.min_rows: 4000 is above data.max_sentences 2000"),
        ("data.folder", "data", "data.folder: data holds data/sentences.parquet, which the pipeline writes: name"),
        ("data.folder", ".", "data.folder: . holds data/sentences.parquet, which the pipeline writes"),
        ("data.folder", "x/../models/leap-1", "data.folder: x/../models/leap-1 lies in models, which"),
        ("data.folder", "reports", "data.folder: reports is reports, which the pipeline writes"),
        ("seeds", [1, 1], "seeds: names a seed twice (found [1, 1])"),
        ("train.max_length", 256, "train.max_length: 256 is above student.max_length 128"),
        ("train.learning_rate", float("nan"), "train.learning_rate: Input should be"),
        ("loss.ramp", [0.6, 0.1], "loss.ramp: must rise (found [0.6, 0.1])"),
        ("data.sources.docstrings.kind", "web", "data.sources.docstrings.kind: Input tag 'web' found"),
        ("evaluation.length_bins", [8, 8], "evaluation.length_bins: must ascend (found [8, 8])"),
        ("evaluation.sweep.thresholds", [0.9, 1.1], "evaluation.sweep.thresholds.1: Input should be less"),
        ("evaluation.cache_gb", -1, "evaluation.cache_gb: Input should be greater than or equal to 0"),
        ("tracking.experiment", 3, "tracking.experiment: Input should be a valid string"),
    ],
)
def test_contradictions_and_values_out_of_range_are_refused(
    content: Any, key: str, value: Any, message: str
) -> None:
    *parents, last = key.split(".")
    block = content
    for parent in parents:
        block = block[parent]
    block[last] = value
    result = mistakes(content)
    assert any(line.startswith(message) for line in result), result


def test_a_folder_beside_the_outputs_is_taken(content: Any) -> None:
    content["data"]["folder"] = "data/my_own"
    assert parse_settings(content, "params.yaml").data.folder == "data/my_own"


def test_the_variants_to_compare_with_may_be_left_out(content: Any) -> None:
    content["gate"] |= {"baseline": None, "fixed_depth": None}
    content["variants"] = {"leap": content["variants"]["leap"]}
    assert parse_settings(content, "params.yaml").gate.baseline is None


def test_calibration_that_would_be_refused_for_too_few_sentences_is_refused_at_once(content: Any) -> None:
    content["validation"]["min_rows"] = 1000
    content["data"] |= {"max_sentences": 2000, "held_out": 0.1}
    (result,) = mistakes(content)
    assert result.startswith(
        "exit.calibration: risk 0.05, keep 0.8 at confidence 0.95 needs 216 held-out sentences, and data.held_out "
        "0.1 of data.max_sentences 2000 surely gives only 179"
    )
    content["data"]["held_out"] = 0.15
    parse_settings(content, "params.yaml")
    content["variants"]["leap"]["exit"] = {"calibration": {"risk": 0.01}}
    assert mistakes(content)[0].startswith(
        "variants.leap.exit.calibration: risk 0.01, keep 0.8 at confidence 0.95 needs 1104"
    )
    content["data"]["max_sentences"] = None  # as many as there are: `leap validate` counts them
    parse_settings(content, "params.yaml")


def test_a_variant_is_the_shared_blocks_with_its_changes(content: Any) -> None:
    settings = parse_settings(content, "params.yaml")
    shared, plus = settings.variant("leap").loss, settings.variant("elastic").loss
    assert (shared.margin, plus.margin) == ("sigmoid", "softplus")
    assert plus.tau == shared.tau == content["loss"]["tau"]
    with pytest.raises(UserError, match="no variant 'leap2'"):
        settings.variant("leap2")


def test_merge_follows_rfc_7386_and_replaces_a_block_whose_kind_changes() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1], "e": {"kind": "x", "f": 1}}
    patch = {"a": {"b": None, "g": 3}, "d": [2], "e": {"kind": "y"}}
    assert merge(base, patch) == {"a": {"c": 2, "g": 3}, "d": [2], "e": {"kind": "y"}}
    assert base == {"a": {"b": 1, "c": 2}, "d": [1], "e": {"kind": "x", "f": 1}}


def test_numbers_read_as_dvc_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = (PROJECT / "params.yaml").read_text()
    path.write_text(text.replace("learning_rate: 2.0e-3", "learning_rate: 3e-05"))
    assert read_settings(path).train.learning_rate == 3e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not valid YAML"),
        ("a: 1\na: 2", "is not valid YAML"),
        ("", "mistake"),
        ("- 1", "mistake"),
    ],
)
def test_a_file_that_is_no_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_settings(path)
    with pytest.raises(UserError, match="leap profile embedded"):
        read_settings(tmp_path / "missing.yaml")


def test_only_a_named_hub_lets_the_network_in(content: Any) -> None:
    assert not parse_settings(content, "params.yaml").names_a_hub()
    content["teacher"] = {"kind": "hub", "repo": "a/b", "revision": "0" * 40}
    assert parse_settings(content, "params.yaml").names_a_hub()


def test_mistakes_of_studies_are_listed_once_at_the_block_that_has_them(content: Any) -> None:
    studies = content["studies"]
    studies["beta"]["train"] = {"epochs": 0}
    studies["beta"]["variants"]["beta_01"]["loss"] = {"beta": -1}
    studies["fixed_depth"]["variants"]["layers_4"]["exit"] = {"min_layer": 5}
    studies["seeds"]["seeds"] = [1, 1]
    result = mistakes(content)
    for expected in (
        "studies.beta.train.epochs: Input should be greater than or equal to 1 (found 0)",
        "studies.beta.variants.beta_01.loss.beta: Input should be greater than or equal to 0",
        "studies.fixed_depth.variants.layers_4.exit: min_layer 5 is above the depth, student.layers 4",
        "studies.seeds.seeds: names a seed twice (found [1, 1])",
    ):
        assert sum(line.startswith(expected) for line in result) == 1, (expected, result)
    assert len(result) == 4


def test_a_variant_of_a_study_lies_over_the_study_over_the_shared_blocks(content: Any) -> None:
    settings = parse_settings(content, "params.yaml")
    cold = settings.study_variant("teacher", "cold_repeated")
    assert (cold.student.width, cold.student.layers) == (384, 12)
    assert (cold.train.epochs, cold.train.batch_size) == (2, 64)
    assert (cold.loss.layer_map, cold.loss.beta) == ("uniform", 0.4)
    adaptive = settings.study_variant("objectives", "adaptive_layer").loss
    assert (adaptive.kind, adaptive.kl_temperature) == ("adaptive_layer", 0.3)
    with pytest.raises(UserError, match="no study 'gamma'"):
        settings.study("gamma")
