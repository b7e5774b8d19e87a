"""Queries and documents leave by their own rules in leap.json."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import MakeFolder
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.exits import LeapEncoder
from leap.exits.calibration import Calibration
from leap.exits.rules import calibrated
from leap.models.exit_heads import ExitHeads

ENCODE = {"threshold": 0.9, "min_layer": 2, "patience": 1}


def opened(folder: Path, **rules: Any) -> LeapEncoder:
    write_with_checksum(folder / "leap.json", {"exit": ENCODE, **rules})
    return LeapEncoder(folder, "cpu")


def test_queries_leave_early_and_documents_at_full_depth(make_folder: MakeFolder, sentences: list[str]) -> None:
    model = opened(make_folder(), query={"layer": 2}, document="full")
    vectors, layers = model.encode_query(sentences, return_exit_layers=True)
    assert set(layers.tolist()) == {2}
    np.testing.assert_array_equal(vectors, model.encode(sentences, strategy="fixed", layer=2))
    vectors, layers = model.encode_document(sentences, return_exit_layers=True)
    assert set(layers.tolist()) == {5}
    np.testing.assert_array_equal(vectors, model.encode(sentences, strategy="full"))
    by_rule = model.encode(sentences, return_exit_layers=True)[1]
    assert by_rule.tolist() == model.encode(sentences, return_exit_layers=True, **ENCODE)[1].tolist()
    # What a caller asks for comes first.
    asked = model.encode_query(sentences, return_exit_layers=True, strategy="full")[1]
    assert set(asked.tolist()) == {5}
    assert model.encode_query(sentences, return_exit_layers=True, threshold=0.9)[1].tolist() == by_rule.tolist()


def test_a_rule_of_thresholds_for_queries(make_folder: MakeFolder, sentences: list[str]) -> None:
    rule = {"threshold": 0.8, "min_layer": 3, "patience": 2}
    model = opened(make_folder(), query=rule)
    result = model.encode_query(sentences, return_exit_layers=True)[1]
    assert result.tolist() == model.encode(sentences, return_exit_layers=True, **rule)[1].tolist()
    # A document without a rule of its own leaves as `encode` does.
    documents = model.encode_document(sentences, return_exit_layers=True)[1]
    assert documents.tolist() == model.encode(sentences, return_exit_layers=True)[1].tolist()


def test_calibrated_thresholds_for_queries_go_through_the_heads(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    folder = make_folder()
    maps = torch.eye(16) + 0.5 * torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(1))
    ExitHeads(maps).save(folder)
    ((rows, pooled),) = LeapEncoder(folder, "cpu").pooled_layers(sentences, batch_size=len(sentences))
    half = F.cosine_similarity(pooled[2], pooled[1], dim=-1).median().item()
    never = torch.inf
    Calibration(torch.tensor([never, half, -1.0, never, never]), 1, None).save(folder, {})
    model = opened(folder, query="calibrated", document="full")
    expected = calibrated(pooled, model.calibration)
    assert expected.unique().tolist() == [2, 3]
    vectors, layers = model.encode_query(sentences, return_exit_layers=True, normalize_embeddings=True)
    assert layers[rows].tolist() == expected.tolist()
    heads = torch.cat([torch.eye(16)[None], maps, torch.eye(16)[None]])
    by_hand = [pooled[layer, row] @ heads[layer] for row, layer in enumerate(expected.tolist())]
    np.testing.assert_allclose(vectors[rows], F.normalize(torch.stack(by_hand), dim=-1).numpy(), atol=1e-5)
    assert set(model.encode_document(sentences, return_exit_layers=True)[1].tolist()) == {5}


def test_calibrated_queries_without_a_calibration_are_refused_by_name(make_folder: MakeFolder) -> None:
    model = opened(make_folder(), query="calibrated")
    with pytest.raises(UserError, match=r"calibration\.json.*leap calibrate"):
        model.encode_query(["bo"])


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"layer": 6}, "query: layer 6 is not a layer of this model: 1 to 5"),
        ({"layer": True}, "query: layer True"),
        ({"threshold": 0.9, "min_layer": 9, "patience": 1}, "min_layer 9 is not a layer"),
        ("early", "query: 'early' is no rule"),
        ({"threshold": 0.9}, "is no exit rule: expected threshold, min_layer and patience"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(make_folder: MakeFolder, rule: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        opened(make_folder(), query=rule)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"queries": {"layer": 2}}, "unknown key queries: it may have exit, query and document"),
        ({"exit": {"threshold": 0.9}}, "exit: {'threshold': 0.9} is no exit rule"),
        ({"exit": None}, "exit: None is no exit rule: expected threshold, min_layer and patience"),
        ({"exit": {"threshold": 0.9, "min_layer": 9, "patience": 1}}, "exit: min_layer 9 is not a layer"),
    ],
)
def test_a_key_that_says_nothing_is_refused(make_folder: MakeFolder, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)):
        opened(make_folder(), **changes)
