import json

import numpy as np
import pytest
import torch
from tiny_models import MakeFolder

from leap.core.errors import UserError
from leap.exits import LeapEncoder


def pooled_of(model: LeapEncoder, texts: list[str]) -> torch.Tensor:
    pooled = torch.empty(model.depth + 1, len(texts), model.encoder.config.width)
    for rows, vectors in model.pooled_layers(texts, batch_size=7):
        pooled[:, rows] = vectors
    return pooled


def test_vectors_come_in_the_order_of_the_sentences(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    pooled = pooled_of(tiny_model, sentences)
    for batch_size in (1, 8, 100):
        vectors = tiny_model.encode(sentences, batch_size=batch_size, strategy="full")
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, pooled[-1].numpy(), atol=1e-5)
    shuffled = tiny_model.encode(sentences[::-1], strategy="full")
    np.testing.assert_allclose(shuffled[::-1], pooled[-1].numpy(), atol=1e-5)


def test_a_fixed_layer(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    vectors, layers = tiny_model.encode(sentences, strategy="fixed", layer=2, return_exit_layers=True)
    np.testing.assert_allclose(vectors, pooled_of(tiny_model, sentences)[2].numpy(), atol=1e-5)
    assert set(layers.tolist()) == {2}


def test_one_sentence_gives_one_vector(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    vector, layer = tiny_model.encode(sentences[0], return_exit_layers=True)
    assert vector.shape == (16,)
    assert layer == 5


def test_no_sentences(tiny_model: LeapEncoder) -> None:
    vectors, layers = tiny_model.encode([], return_exit_layers=True)
    assert vectors.shape == (0, 16)
    assert layers.shape == (0,)


def test_forms_of_the_result(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    tensor = tiny_model.encode(sentences[:3], convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    several = tiny_model.encode(sentences[:3], convert_to_numpy=False)
    assert isinstance(several, list)
    assert torch.stack(several).equal(tensor)


def test_prompt_stands_before_every_sentence(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    prompted = tiny_model.encode(sentences[:3], prompt="bo bu ")
    np.testing.assert_array_equal(prompted, tiny_model.encode([f"bo bu {text}" for text in sentences[:3]]))


def test_vectors_are_normalised_where_the_folder_or_the_caller_says_so(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    plain, normalised = LeapEncoder(make_folder(), "cpu"), LeapEncoder(make_folder(normalize=True), "cpu")
    raw = plain.encode(sentences)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1)
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(plain.encode(sentences, normalize_embeddings=True), expected, atol=1e-6)
    np.testing.assert_allclose(normalised.encode(sentences), expected, atol=1e-6)


def test_the_folders_own_rule_and_the_papers(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    rule = LeapEncoder(folder, "cpu").rule
    # The paper's l_min 6 does not fit a model of five layers.
    assert (rule.threshold, rule.min_layer, rule.patience) == (0.95, 5, 1)
    (folder / "leap.json").write_text(json.dumps({"exit": {"threshold": -1.0, "min_layer": 2, "patience": 2}}))
    model = LeapEncoder(folder, "cpu")
    assert set(model.encode(sentences, return_exit_layers=True)[1].tolist()) == {3}
    assert set(model.encode(sentences, min_layer=4, return_exit_layers=True)[1].tolist()) == {4}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 1.5}, "threshold 1.5"),
        ({"min_layer": 6}, "min_layer 6"),
        ({"patience": 5}, "patience 5"),
        ({"layer": 2}, "strategy='fixed'"),
        ({"strategy": "fixed"}, "strategy='fixed'"),
        ({"strategy": "fixed", "layer": 6}, "layer 6"),
        ({"strategy": "fixed", "layer": 0}, "layer 0"),
    ],
)
def test_arguments_that_do_not_fit(tiny_model: LeapEncoder, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny_model.encode(["bi"], **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none(make_folder: MakeFolder) -> None:
    with pytest.raises(UserError, match="no usable CUDA device"):
        LeapEncoder(make_folder(), "cuda")
    assert LeapEncoder(make_folder(), "auto").device.type == "cpu"
