"""Queries and documents leave by their own rules in leap.json."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import MakeFolder

from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.exits import LeapEncoder

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
    found = model.encode_query(sentences, return_exit_layers=True)[1]
    assert found.tolist() == model.encode(sentences, return_exit_layers=True, **rule)[1].tolist()
    # A document without a rule of its own leaves as `encode` does.
    documents = model.encode_document(sentences, return_exit_layers=True)[1]
    assert documents.tolist() == model.encode(sentences, return_exit_layers=True)[1].tolist()


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"layer": 6}, "query: layer 6 is not a layer of this model: 1 to 5"),
        ({"layer": True}, "query: layer True"),
        ({"threshold": 0.9, "min_layer": 9, "patience": 1}, "min_layer 9 is not a layer"),
        ("early", "query: 'early' is no rule"),
        ({"threshold": 0.9}, "is no rule"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(make_folder: MakeFolder, rule: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        opened(make_folder(), query=rule)
