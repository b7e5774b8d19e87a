"""Exit heads before the first step: the least-squares maps from a retrofitted model's layers to its last one."""

from pathlib import Path

import pytest
import torch
from tiny_models import MakeFolder
from tiny_settings import tiny_variant
from torch.nn import functional as F

from leap.core.project import Checkpoint
from leap.core.settings.sources import LocalModel
from leap.exits import LeapEncoder
from leap.models.locate import locate
from leap.train.start_heads import fit_start
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
