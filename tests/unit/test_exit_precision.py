"""Exits in half precision."""

import pytest
import torch
from tiny_models import MakeFolder

from leap.exits import ExitRule, LeapEncoder
from leap.exits.precision import TOLERANCE, near_threshold
from leap.exits.rules import converged

RULE = ExitRule(0.885, 2, 2)


def pooled_of(model: LeapEncoder, texts: list[str]) -> torch.Tensor:
    pooled = torch.empty(model.depth + 1, len(texts), model.encoder.config.width)
    for rows, vectors in model.pooled_layers(texts):
        pooled[:, rows] = vectors
    return pooled


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_moves_only_exits_near_the_threshold(
    make_folder: MakeFolder, sentences: list[str], dtype: torch.dtype
) -> None:
    folder = make_folder()
    whole = LeapEncoder(folder, "cpu")
    half = LeapEncoder(folder, "cpu", model_kwargs={"dtype": dtype})
    assert half.encoder.words.weight.dtype == dtype
    pooled = pooled_of(whole, sentences)
    options = {"threshold": RULE.threshold, "min_layer": RULE.min_layer, "patience": RULE.patience}
    vectors, exits = half.encode(sentences, return_exit_layers=True, convert_to_tensor=True, **options)
    assert vectors.dtype == torch.float32
    expected = converged(pooled, RULE)
    near = near_threshold(pooled, RULE, TOLERANCE[dtype])
    assert near.double().mean() < 0.5
    same = torch.from_numpy(exits) == expected
    assert same[~near].all()
    exited = pooled[expected, torch.arange(len(expected))]
    assert torch.cosine_similarity(vectors, exited)[same].min() > (0.9999 if dtype == torch.float16 else 0.998)


def test_near_threshold_by_hand() -> None:
    # Cosines of consecutive layers, from angles: 10, 20 and 5 degrees; layer 1 moves by 30.
    angles = torch.tensor([0.0, 30.0, 40.0, 60.0, 65.0]).deg2rad()
    pooled = torch.stack([angles.cos(), angles.sin()], dim=1).unsqueeze(1)
    cosine = torch.tensor(10.0).deg2rad().cos().item()

    def near(theta: float, min_layer: int, tolerance: float = 1e-3) -> bool:
        return bool(near_threshold(pooled, ExitRule(theta, min_layer, 1), tolerance))

    assert near(cosine, 2)
    assert near(cosine + 0.0009, 2)
    assert not near(cosine + 0.0011, 2)
    assert not near(cosine, 3)  # layer 2 is not asked
    assert not near(torch.tensor(30.0).deg2rad().cos().item(), 1)  # layer 1 has nothing before it
    assert not near(torch.tensor(20.0).deg2rad().cos().item(), 2)  # left at layer 2 already
    assert not near(torch.tensor(5.0).deg2rad().cos().item(), 2)  # the last layer is never asked
