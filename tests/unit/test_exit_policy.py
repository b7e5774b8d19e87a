"""Every policy in the exit runtime against its reference implementation on all pooled layers."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from leap.exits import ExitRule, LeapEncoder
from leap.exits.calibration import Calibration
from leap.exits.forward import exit_forward
from leap.exits.policy import ByPredictors, Calibrated, Capped, ExitPolicy, Fixed, Patient, capped
from leap.exits.predictor import Predictor
from leap.exits.rules import (
    at_layers,
    by_predictors,
    calibrated,
    consecutive_similarity,
    converged,
    first_layer_at,
    patient,
)
from leap.exits.similarity_predictors import Predictors
from leap.models.batches import pack

Reference = Callable[[Tensor], Tensor]

thresholds = st.floats(0.80, 0.97)
generators = st.integers(0, 10_000).map(lambda seed: torch.Generator().manual_seed(seed))


def some_predictors(generator: torch.Generator) -> Predictors:
    return Predictors(
        torch.randn(4, 16, generator=generator) * 0.2, torch.rand(4, generator=generator) * 0.1 + 0.85
    )


def some_calibration(generator: torch.Generator, score: str, patience: int) -> Calibration:
    result = torch.rand(5, generator=generator) * 0.2 + 0.8
    result[torch.rand(5, generator=generator) < 0.3] = torch.inf
    result[: 1 if score == "predicted" else patience] = torch.inf
    result[-1] = torch.inf
    predictor = Predictor(torch.randn(5, 6, generator=generator) * 0.1 + torch.tensor([0.5, 0.3, 0, 0, 0, 0]))
    return Calibration(result, patience, predictor if score == "predicted" else None)


@st.composite
def policies(draw: st.DrawFn) -> tuple[ExitPolicy, Reference, Reference]:
    """A policy as below, within a budget of layers or without one."""
    policy, reference, margin = draw(policies_without_budget())
    most = draw(st.none() | st.integers(1, 5))
    return capped(policy, most, 5), lambda pooled: reference(pooled).clamp(max=most or 5), margin


@st.composite
def policies_without_budget(draw: st.DrawFn) -> tuple[ExitPolicy, Reference, Reference]:
    """A policy, its reference, and how far each row's scores are from deciding otherwise, [N]."""
    kind = draw(st.sampled_from(["converged", "patience", "predictors", "consecutive", "predicted", "fixed"]))
    rule = ExitRule(draw(thresholds), draw(st.integers(1, 5)), draw(st.integers(1, 3)))
    generator = draw(generators)

    def margin(scores: Tensor, threshold: float | Tensor) -> Tensor:
        return (scores - threshold).nan_to_num(posinf=1.0, neginf=1.0, nan=1.0).abs().amin(0)

    def by_rule(pooled: Tensor) -> Tensor:
        return margin(consecutive_similarity(pooled, rule.patience), rule.threshold)

    if kind == "converged":
        return rule, lambda pooled: converged(pooled, rule), by_rule
    if kind == "patience":
        count = draw(st.integers(1, 5 - rule.patience))
        return Patient(rule, count), lambda pooled: patient(pooled, rule, count), by_rule
    if kind == "predictors":
        predictors, theta, first = some_predictors(generator), rule.threshold, rule.min_layer
        return (
            ByPredictors(predictors, theta, first),
            lambda pooled: by_predictors(pooled, predictors, theta, first),
            lambda pooled: margin(predictors.scores(pooled), theta),
        )
    if kind == "fixed":
        layer = rule.min_layer
        return (
            Fixed(layer),
            lambda pooled: torch.full((pooled.shape[1],), layer),
            lambda pooled: torch.ones(pooled.shape[1]),
        )
    calibration = some_calibration(generator, kind, rule.patience)
    return (
        Calibrated(calibration),
        lambda pooled: calibrated(pooled, calibration),
        lambda pooled: margin(
            calibration.predictor.scores(pooled)
            if calibration.predictor
            else consecutive_similarity(pooled, rule.patience),
            calibration.thresholds[:, None],
        ),
    )


@settings(max_examples=120, deadline=None)
@given(chosen=policies(), size=st.integers(1, 20), seed=st.integers(0, 10_000))
def test_equals_the_reference(
    tiny_model: LeapEncoder,
    sentences: list[str],
    chosen: tuple[ExitPolicy, Reference, Reference],
    size: int,
    seed: int,
) -> None:
    policy, reference, margin = chosen
    batch = pack(sorted(tiny_model.tokenizer(random.Random(seed).sample(sentences, size)), key=len))
    with torch.inference_mode():
        pooled = tiny_model.encoder(batch)
        assume((margin(pooled) > 1e-5).all())
        vectors, exits = exit_forward(tiny_model.encoder, batch, policy)
    expected = reference(pooled)
    assert exits.tolist() == expected.tolist()
    torch.testing.assert_close(vectors, at_layers(pooled, expected), atol=1e-5, rtol=0)


@settings(max_examples=25, deadline=None)
@given(chosen=policies(), size=st.integers(2, 12), seed=st.integers(0, 10_000))
def test_a_row_does_not_depend_on_batch_order_or_neighbours(
    tiny_model: LeapEncoder,
    sentences: list[str],
    chosen: tuple[ExitPolicy, Reference, Reference],
    size: int,
    seed: int,
) -> None:
    policy, _, margin = chosen
    rows = tiny_model.tokenizer(random.Random(seed).sample(sentences, size))
    together = sorted(rows, key=len)
    with torch.inference_mode():
        assume((margin(tiny_model.encoder(pack(together))) > 1e-5).all())
        vectors, exits = exit_forward(tiny_model.encoder, pack(together), policy)
        for number, row in enumerate(together):
            alone, layer = exit_forward(tiny_model.encoder, pack([row]), policy)
            assert layer.item() == exits[number]
            torch.testing.assert_close(alone[0], vectors[number], atol=1e-5, rtol=0)
            assert torch.cosine_similarity(alone[0], vectors[number], dim=0) >= 0.99999


@settings(max_examples=60, deadline=None)
@given(chosen=policies(), rows=st.integers(1, 30), generator=generators)
def test_layer_thresholds_say_the_same_as_the_policy(
    chosen: tuple[ExitPolicy, Reference, Reference], rows: int, generator: torch.Generator
) -> None:
    policy, reference, _ = chosen
    put = policy.layer_thresholds(5)
    if put is None:
        policy = policy.policy if isinstance(policy, Capped) else policy
        assert isinstance(policy, Fixed | ByPredictors | Patient | Calibrated)
        assert not isinstance(policy, Patient) or policy.pabee_patience > 1
        assert not isinstance(policy, Calibrated) or policy.calibration.predictor is not None
        return
    # A walk whose steps shrink: consecutive cosines round the thresholds.
    pooled = torch.randn(6, rows, 16, generator=generator).mul(0.5).cumsum(0)
    assert put.thresholds.shape == (5,)
    assert put.thresholds[-1] == torch.inf
    scores = consecutive_similarity(pooled, put.patience)
    assert first_layer_at(scores, put.thresholds[:, None], 1).tolist() == reference(pooled).tolist()


@pytest.mark.parametrize("most", [0, 6])
def test_a_budget_that_the_model_does_not_have_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match=f"a budget of {most} layers: this model has 1 to 5"):
        capped(ExitRule(0.9, 2), most, 5)


def test_the_examples_do_mix_exits(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    batch = pack(sorted(tiny_model.tokenizer(sentences), key=len))
    generator = torch.Generator().manual_seed(3)
    mixing = [
        Patient(ExitRule(0.94, 2), 2),
        ByPredictors(some_predictors(generator), 0.9, 1),
        Calibrated(some_calibration(generator, "predicted", 1)),
    ]
    for policy in mixing:
        with torch.inference_mode():
            _, exits = exit_forward(tiny_model.encoder, batch, policy)
        assert len(exits.unique()) >= 2, policy


def test_zero_vectors_never_converge_and_a_head_still_answers() -> None:
    zeros = torch.zeros(3, 8)
    assert not ExitRule(0.1, 1).leaves(2, zeros, [zeros]).any()
    assert not Patient(ExitRule(0.1, 1), 2).leaves(3, zeros, [zeros, zeros]).any()
    predictors = Predictors(torch.ones(4, 8), torch.full((4,), 0.9))
    assert ByPredictors(predictors, 0.9, 1).leaves(1, zeros, []).all()
    scores = Predictor(torch.ones(5, 6)).predict(2, zeros, zeros, zeros)
    assert scores.isfinite().all()


@pytest.mark.parametrize(("count", "patience"), [(0, 1), (5, 1), (3, 3)])
def test_a_run_that_the_model_is_too_shallow_for(count: int, patience: int) -> None:
    with pytest.raises(ValueError, match=f"pabee_patience {count}"):
        Patient(ExitRule(0.9, 2, patience), count).check_depth(5)
    Patient(ExitRule(0.9, 2, 1), 4).check_depth(5)


def test_a_layer_without_a_threshold_is_not_scored() -> None:
    class Unreadable:
        def predict(self, *_: object) -> Tensor:
            raise AssertionError("scored")

    held = torch.tensor([torch.inf, 0.9, torch.inf, torch.inf])
    calibration = Calibration(held, 1, Unreadable())
    assert not Calibrated(calibration).leaves(3, torch.ones(2, 4), [torch.ones(2, 4)] * 2).any()


def test_a_score_of_exactly_the_threshold_leaves() -> None:
    # Norms of 1 and cosines of a half: no rounding anywhere.
    before, now = torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[0.5, 0.5, 0.5, 0.5]])
    pooled = torch.stack([before, before, now, before, before])
    for theta, expected in ((0.5, True), (0.5 + 1e-7, False)):
        held = torch.tensor([torch.inf, theta, torch.inf, torch.inf])
        calibration = Calibration(held, 1, None)
        assert Calibrated(calibration).leaves(2, now, [before]).item() is expected
        assert (calibrated(pooled, calibration).item() == 2) is expected
        assert Patient(ExitRule(theta, 1), 1).leaves(2, now, [before]).item() is expected
        predictors = Predictors(torch.zeros(3, 4), torch.full((3,), 0.5))
        assert ByPredictors(predictors, theta, 1).leaves(2, now, []).item() is expected
