"""Exit heads before the first step: the least-squares maps from a retrofitted model's layers to its last one."""

from pathlib import Path

import pytest
import torch
from tiny_models import MakeFolder, write_modules
from tiny_settings import tiny_variant
from torch.nn import functional as F
from zoo import write_model

from leap.core.errors import UserError
from leap.core.project import Checkpoint
from leap.core.settings.sources import LocalModel
from leap.exits import LeapEncoder
from leap.models.device import training_precision
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.train.start_heads import fit_start
from leap.train.student import start_student
from leap.train.teacher import build_cache, open_teacher, write_online
from leap.train.train_student import train_student

CPU = torch.device("cpu")
LAYERS = [1, 2, 3, 4]


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    return make_folder(layers=4, width=16)


def test_the_maps_are_the_least_squares_solution_from_a_cached_and_an_online_teacher(
    folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    teacher = locate(LocalModel(kind="local", path=str(folder)))
    build_cache(tmp_path / "cached", teacher, sentences, LAYERS, 32, "cpu")
    write_online(tmp_path / "online", teacher, sentences, LAYERS, 32)
    (rows, pooled), *_ = LeapEncoder(folder, "cpu").pooled_layers(sentences, batch_size=len(sentences))
    assert len(rows) == len(sentences)
    scale = pooled[3].square().sum(0).mean()
    penalty = 1e-3 * scale.double() * torch.eye(16, dtype=torch.float64)
    layer, last = pooled[3].double(), pooled[-1].double()
    by_hand = torch.linalg.solve(layer.T @ layer + penalty, layer.T @ last).float()
    for kind in ("cached", "online"):
        opened = open_teacher(tmp_path / kind, sentences, teacher, CPU, "fp32")
        maps = fit_start(opened, len(sentences), CPU)
        assert maps.shape == (3, 16, 16)
        torch.testing.assert_close(maps[2], by_hand, atol=0.02, rtol=0.02)  # a cache is of float16


def test_a_retrofit_leads_to_the_last_layer_before_its_first_step(
    folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    source = LocalModel(kind="local", path=str(folder))
    build_cache(tmp_path / "cache", locate(source), sentences, LAYERS, 32, "cpu")
    near = {}
    for start in ("zero", "ridge"):
        variant = tiny_variant(
            student={"layers": 4, "width": 16, "intermediate": 32, "start": {"kind": "teacher"}},
            loss={"alpha": 0.0, "heads": True, "heads_start": start, "exit_contrast": 1.0},
            train={"epochs": 1, "learning_rate": 1e-9},
        )
        place = Checkpoint(tmp_path / start, "leap", 1)
        train_student(variant, source, 1, sentences, tmp_path / "cache", place, lambda *_: None)
        model = LeapEncoder(place.student, "cpu")
        (_, pooled), *_ = model.pooled_layers(sentences, batch_size=len(sentences))
        returned = model.returned(pooled)
        near[start] = F.cosine_similarity(returned[1:-1], returned[-1:], dim=-1).mean(1)
    assert (near["ridge"] > near["zero"]).all()


def test_frozen_layers_stay_as_they_are_and_the_others_learn(
    folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    source = LocalModel(kind="local", path=str(folder))
    build_cache(tmp_path / "cache", locate(source), sentences, LAYERS, 32, "cpu")
    variant = tiny_variant(
        student={"layers": 4, "width": 16, "intermediate": 32, "start": {"kind": "teacher", "frozen": 2}},
        loss={"alpha": 0.0, "heads": True, "heads_start": "ridge", "exit_contrast": 1.0},
        train={"epochs": 2, "precision": "auto"},
    )
    place = Checkpoint(tmp_path, "leap", 1)
    train_student(variant, source, 1, sentences, tmp_path / "cache", place, lambda *_: None)
    before, after = Encoder.load(folder).state_dict(), Encoder.load(place.student).state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert {name.split(".")[1] for name in changed} == {"2", "3"}
    assert all(name.startswith("layers.") for name in changed)


def test_only_packed_models_keep_layers_and_one_layer_at_least_is_trained(tmp_path: Path) -> None:
    folder = write_modules(write_model(tmp_path / "model", "modernbert"), "mean_tokens")
    shape = open_model(folder).encoder.config
    settings = tiny_variant(
        student={"layers": shape.layers, "width": shape.width, "start": {"kind": "teacher", "frozen": 1}}
    )
    with pytest.raises(UserError, match=r"student\.start\.frozen: 1, but only models of the BERT family"):
        start_student(settings.student, folder, torch.ones(65, dtype=torch.int64), seed=1)


@pytest.mark.parametrize(
    ("units", "device", "chosen"), [(True, "cpu", "bf16"), (False, "cpu", "fp32"), (False, "cuda", "bf16")]
)
def test_half_precision_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, units: bool, device: str, chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": units}, raising=False)
    assert training_precision("auto", torch.device(device)) == chosen
    assert training_precision("fp32", torch.device(device)) == "fp32"
