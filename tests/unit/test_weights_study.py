"""The studies of int8 and half precision measure the forms that `LeapEncoder` serves."""

import numpy as np
import pytest
import torch
from tiny_models import MakeFolder, write_folder

from leap.core.settings.evaluation import EvaluationSettings
from leap.data.pairs import Pairs
from leap.exits import ExitRule, LeapEncoder
from leap.latency.latency_table import latency_settings
from leap.models.int8 import Int8Linear
from leap.models.small_batches import SmallBatchLinear
from leap.studies import weights_study
from leap.studies.weights_study import weights_rows

RULE = ExitRule(0.885, 2, 2)
LATENCY = latency_settings(
    batch_sizes=[1], lengths=["sentences"], warmup=0, iterations=10, device="cpu", precision="fp32"
)


@pytest.fixture
def evaluation() -> EvaluationSettings:
    sweep = {"thresholds": [0.9], "min_layers": [2], "patience": [1]}
    values = {"batch_size": 8, "device": "cpu", "primary_set": "made", "nn_k": 5, "length_bins": [8]}
    return EvaluationSettings.model_validate(
        {**values, "sweep": sweep, "cache_gb": 0.0, "bootstrap": 100, "seed": 1}
    )


def test_what_ships_is_measured(
    make_folder: MakeFolder,
    sentences: list[str],
    evaluation: EvaluationSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = Pairs(sentences[:30], sentences[30:], np.random.default_rng(0).uniform(0, 5, 30))
    opened: list[LeapEncoder] = []

    def measured(model: LeapEncoder, *arguments: object) -> object:
        opened.append(model)
        return real(model, *arguments)

    real = weights_study.measure_student
    monkeypatch.setattr(weights_study, "measure_student", measured)
    milliseconds = iter(range(1, 10_000))
    monkeypatch.setattr(weights_study, "cpu_timer", lambda path, batch: float(next(milliseconds)))
    rows = weights_rows(LeapEncoder(make_folder(), "cpu"), pairs, RULE, evaluation, LATENCY, ["int8"])
    assert [(row["weights"], row["path"]) for row in rows] == [
        ("fp32", "full"), ("fp32", "exit"), ("int8", "full"), ("int8", "exit"),
    ]  # fmt: skip
    assert [model.quantize for model in opened] == [None, "int8"]
    # Exactly the vectors that quantize="int8" gives.
    shipped = LeapEncoder(opened[1].folder, "cpu", quantize="int8").encode(sentences, strategy="full")
    np.testing.assert_allclose(opened[1].encode(sentences, strategy="full"), shipped)
    assert rows[0]["nn_at_10"] == 1.0
    assert rows[0]["speed_up"] == 1.0
    assert rows[3]["multiplied"] == rows[1]["speed_up"] * rows[2]["speed_up"]
    assert rows[1]["moved"] == 0.0
    assert 0.0 <= rows[3]["moved"] < 0.5
    for row in rows:
        assert row["speed_up"] == rows[0]["ms_p50"] / row["ms_p50"]
        assert row["speed_up_ci95"][0] <= row["speed_up"] <= row["speed_up_ci95"][1]


def test_at_the_width_of_a_real_model_both_sides_are_the_fast_ones(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = write_folder(tmp_path_factory.mktemp("wide") / "model", layers=2, width=384)
    plain, small = LeapEncoder(folder, "cpu"), LeapEncoder(folder, "cpu", quantize="int8")
    kinds = [{type(part) for part in model.encoder.modules()} for model in (plain, small)]
    assert SmallBatchLinear in kinds[0]
    assert Int8Linear in kinds[1]
    assert not {SmallBatchLinear, torch.nn.Linear} & kinds[1]
