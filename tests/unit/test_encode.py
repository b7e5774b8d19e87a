import numpy as np
import pytest
import torch
from tiny_models import MakeFolder

from leap.core.errors import UserError
from leap.evaluate import encode
from leap.evaluate.encode import full_and_exited, layer_vectors
from leap.exits import ExitRule, LeapEncoder

RULE = ExitRule(0.885, 2, 2)


def test_layer_vectors_in_the_order_of_the_sentences(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    pooled = layer_vectors(tiny_model, sentences, batch_size=7)
    assert pooled.shape == (6, 60, 16)
    for layer in (1, 3, 5):
        expected = tiny_model.encode(sentences, strategy="fixed", layer=layer)
        np.testing.assert_allclose(pooled[layer].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 60, 1000])
def test_both_modes_are_those_of_the_runtime(
    tiny_model: LeapEncoder, sentences: list[str], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "CHUNK", chunk)
    result = full_and_exited(tiny_model, sentences, RULE, batch_size=8)
    full = tiny_model.encode(sentences, strategy="full", normalize_embeddings=True)
    exited, layers = tiny_model.encode(
        sentences,
        threshold=RULE.threshold,
        min_layer=RULE.min_layer,
        patience=RULE.patience,
        normalize_embeddings=True,
        return_exit_layers=True,
    )
    assert len(set(layers)) == 3
    assert result.layers.tolist() == layers.tolist()
    np.testing.assert_allclose(result.full.numpy(), full, atol=1e-5)
    np.testing.assert_allclose(result.exited.numpy(), exited, atol=1e-5)


def test_equal_texts_get_equal_vectors(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    result = full_and_exited(tiny_model, [*sentences, *sentences[::-1]], RULE, batch_size=7)
    assert result.full.shape == (120, 16)
    assert result.full[:60].equal(result.full[60:].flip(0))
    assert result.exited[:60].equal(result.exited[60:].flip(0))
    assert result.layers[:60].equal(result.layers[60:].flip(0))


def test_a_damaged_model_is_refused(make_folder: MakeFolder, sentences: list[str]) -> None:
    model = LeapEncoder(make_folder(), "cpu")
    with torch.no_grad():
        model.encoder.layers[3].up.bias[0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        layer_vectors(model, sentences, batch_size=8)
    with pytest.raises(UserError, match="not finite"):
        full_and_exited(model, sentences, RULE, batch_size=8)
