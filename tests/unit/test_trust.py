"""The comparison of a fast path with its reference implementation lets no wrong one through."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from leap.exits.cuda.graphs import GraphEncoder
from leap.exits.plan import Plan
from leap.exits.trust import disagreement, made_batch
from leap.models.batches import Batch
from leap.models.packed_encoder import Encoder, EncoderConfig

DEPTH = 6
Change = Callable[[Plan, Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig(layers=DEPTH, width=32, heads=2, intermediate=64, vocabulary=50, positions=100)
    made = Encoder(config).eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.2)
    return made.bfloat16()


def test_made_rows_are_of_many_lengths_and_fit_the_model(encoder: Encoder) -> None:
    assert made_batch(encoder, 128).lengths.unique().numel() > 10
    assert int(made_batch(encoder, 128).lengths.max()) == 100
    assert int(made_batch(encoder, 16).lengths.max()) == 16


@torch.inference_mode()
def test_a_path_that_agrees(encoder: Encoder) -> None:
    result = GraphEncoder(encoder)
    result.always = True
    plans: list[Plan] = []

    def run(batch: Batch, plan: Plan) -> tuple[Tensor, Tensor]:
        plans.append(plan)
        return result.run(batch, plan)

    assert disagreement(run, encoder, made_batch(encoder, 128), times=2) is None
    assert [bool(plan.tests) for plan in plans] == [False, False, True, True, True, True]


@torch.inference_mode()
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan, vectors, exits: (vectors.flip(0), exits), "full depth: cosine"),
        (lambda plan, vectors, exits: (vectors * torch.nan, exits), "full depth: cosine nan"),
        (
            lambda plan, vectors, exits: (vectors, exits.clamp(max=DEPTH - 1)),
            "full depth: row 0 of 17 left at",
        ),
        (lambda plan, vectors, exits: (vectors, exits + bool(plan.tests)), "forced exits: row 0 of 17"),
        (
            lambda plan, vectors, exits: (vectors, exits.where(exits < 4, DEPTH - 1)),
            "full depth",
        ),
    ],
)
def test_a_path_that_does_not(encoder: Encoder, change: Change, message: str) -> None:
    result = GraphEncoder(encoder)
    batch = made_batch(encoder, 128)
    reason = disagreement(lambda batch, plan: change(plan, *result.run(batch, plan)), encoder, batch)
    assert message in (reason or "")


@torch.inference_mode()
def test_a_row_may_leave_elsewhere_only_near_the_threshold(encoder: Encoder) -> None:
    result, batch = GraphEncoder(encoder), made_batch(encoder, 128)

    def late(batch: Batch, plan: Plan) -> tuple[Tensor, Tensor]:
        """One row that should leave at the threshold's layer stays to the end."""
        vectors, exits = result.run(batch, plan)
        if len(plan.tests) > 1:
            pooled = encoder(batch)
            cosine = torch.cosine_similarity(pooled[plan.tests[0]], pooled[plan.tests[0] - 1], dim=-1)
            exits[cosine.argmax()] = DEPTH
        return vectors, exits

    assert "exits by threshold: row" in (disagreement(late, encoder, batch) or "")
