"""The exit runtime against its reference implementation: all layers computed, the rule applied afterwards."""

import random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.rules import at_layers, consecutive_similarity, converged
from leap.models.batches import Batch, pack

# Most consecutive cosines of the random model lie here, so rows of one batch leave at different layers.
thresholds = st.floats(0.80, 0.97)
# Leaves at layers 3, 4 and 5.
MIXED = ExitRule(0.885, 2, 2)
rules = st.builds(ExitRule, thresholds, st.integers(1, 5), st.integers(1, 4))


def packed(model: LeapEncoder, texts: list[str]) -> Batch:
    return pack(sorted(model.tokenizer(texts), key=len))


@torch.inference_mode()
def clear(model: LeapEncoder, batch: Batch, rule: ExitRule) -> bool:
    """Return true where no cosine is so near to the threshold that the last bits decide."""
    scores = consecutive_similarity(model.encoder(batch), rule.patience)
    return not ((scores - rule.threshold).abs() < 1e-5).any()


@settings(max_examples=60, deadline=None)
@given(rule=rules, size=st.integers(1, 20), seed=st.integers(0, 10_000))
def test_equals_the_reference(
    tiny_model: LeapEncoder, sentences: list[str], rule: ExitRule, size: int, seed: int
) -> None:
    batch = packed(tiny_model, random.Random(seed).sample(sentences, size))
    assume(clear(tiny_model, batch, rule))
    with torch.inference_mode():
        vectors, exits = exit_forward(tiny_model.encoder, batch, rule)
        pooled = tiny_model.encoder(batch)
    expected = converged(pooled, rule)
    assert exits.tolist() == expected.tolist()
    torch.testing.assert_close(vectors, at_layers(pooled, expected), atol=1e-5, rtol=0)


def test_the_examples_do_mix_exits(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    with torch.inference_mode():
        _, exits = exit_forward(tiny_model.encoder, packed(tiny_model, sentences), MIXED)
    assert exits.unique().tolist() == [3, 4, 5]


@settings(max_examples=12, deadline=None)
@given(rule=rules, seed=st.integers(0, 10_000), batch_size=st.integers(1, 17))
def test_a_row_does_not_depend_on_its_neighbours(
    tiny_model: LeapEncoder, sentences: list[str], rule: ExitRule, seed: int, batch_size: int
) -> None:
    chosen = random.Random(seed).sample(sentences, 17)
    assume(clear(tiny_model, packed(tiny_model, chosen), rule))
    options = {"threshold": rule.threshold, "min_layer": rule.min_layer, "patience": rule.patience}
    together, layers = tiny_model.encode(chosen, batch_size=batch_size, return_exit_layers=True, **options)
    for number, text in enumerate(chosen):
        alone, layer = tiny_model.encode(text, return_exit_layers=True, **options)
        assert layer == layers[number]
        assert together[number] == pytest.approx(alone, abs=1e-5)


def test_layers_after_the_last_exit_are_not_computed_and_rows_leave(
    tiny_model: LeapEncoder, sentences: list[str]
) -> None:
    batch = packed(tiny_model, sentences)
    computed: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda _, inputs, __: computed.append(inputs[1].rows))
        for layer in tiny_model.encoder.layers
    ]
    try:
        with torch.inference_mode():
            _, exits = exit_forward(tiny_model.encoder, batch, MIXED)
            mixed = computed.copy()
            computed.clear()
            exit_forward(tiny_model.encoder, batch, ExitRule(-1.0, 3))
    finally:
        for hook in hooks:
            hook.remove()
    # Layer l computes the rows that did not leave before it.
    assert mixed == [int((exits >= layer).sum()) for layer in range(1, int(exits.max()) + 1)]
    assert sum(mixed) == exits.sum()
    assert 60 > mixed[3] > mixed[4] > 0
    assert computed == [60, 60, 60]


def test_an_unreachable_threshold_is_full_depth_to_the_bit(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    batch = packed(tiny_model, sentences)
    with torch.inference_mode():
        vectors, exits = exit_forward(tiny_model.encoder, batch, ExitRule(2.0, 1))
        assert vectors.equal(layer_forward(tiny_model.encoder, batch, 5))
        assert vectors.equal(tiny_model.encoder(batch)[-1])
    assert exits.unique().tolist() == [5]


@pytest.mark.parametrize("layer", [1, 3, 5])
def test_layer_forward_is_that_layer(tiny_model: LeapEncoder, sentences: list[str], layer: int) -> None:
    batch = packed(tiny_model, sentences)
    with torch.inference_mode():
        assert layer_forward(tiny_model.encoder, batch, layer).equal(tiny_model.encoder(batch)[layer])
