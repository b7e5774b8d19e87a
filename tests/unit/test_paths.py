import logging
import math

import pytest
import torch

from leap.exits import ExitRule, LeapEncoder
from leap.exits.fused import FusedEncoder, unsupported
from leap.exits.paths import EagerPath, choose_path, thresholds
from leap.model.encoder import Encoder, EncoderConfig


def encoder(width: int = 128, heads: int = 4, dtype: torch.dtype = torch.float16) -> Encoder:
    return Encoder(EncoderConfig(2, width, heads, 2 * width, vocabulary=10, positions=16)).to(dtype)


def test_a_cpu_model_runs_eagerly_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="leap.exits.paths"):
        path = choose_path(encoder())
    assert isinstance(path, EagerPath)
    assert caplog.messages == ["exit path: cpu eager (the model is on cpu)"]


def test_the_path_is_chosen_once_until_the_weights_change(
    tiny_model: LeapEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="leap.exits.paths"):
        first = tiny_model.path
        assert tiny_model.path is first
        tiny_model.encoder.words.weight.data = tiny_model.encoder.words.weight.data.clone()
        assert tiny_model.path is not first


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (encoder(), None),
        (encoder(dtype=torch.bfloat16), None),
        (encoder(dtype=torch.float32), "float32"),
        (encoder(width=128, heads=8), "heads of 16"),
        (encoder(width=192, heads=6), "widths 192 and 384"),
    ],
)
def test_what_the_fused_kernel_computes(model: Encoder, reason: str | None) -> None:
    found = unsupported(model)
    assert found is None if reason is None else reason in (found or "")
    if reason:
        with pytest.raises(ValueError, match=reason):
            FusedEncoder(model)


def test_a_rule_as_thresholds() -> None:
    assert thresholds(ExitRule(0.9, 3), 5) == [math.inf, math.inf, 0.9, 0.9, 0.9]
    assert thresholds(ExitRule(0.9, 1, patience=3), 5) == [math.inf, math.inf, math.inf, 0.9, 0.9]
