"""Training on a GPU: the captured step against the plain one, resumed runs, a loss that breaks."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import write_folder
from tiny_settings import ADAPTIVE, tiny_variant

from leap.core.errors import UserError
from leap.core.project import Project
from leap.core.settings.sources import LocalModel
from leap.models.locate import locate
from leap.train.teacher import build_cache, write_online
from leap.train.train_student import train_student

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LAYERS = [0, 1, 2, 3, 4, 5]
WIDE = {"student": {"width": 16, "heads": 1, "intermediate": 32}}


@pytest.fixture
def teacher_folder(tmp_path: Path) -> Path:
    """A teacher whose heads the packed kernels take, so that online, too, the step is captured."""
    return write_folder(tmp_path / "teacher", width=32)


class Run:
    """One training on the GPU."""

    def __init__(self, root: Path, teacher_folder: Path, sentences: list[str], online: bool = False) -> None:
        self.root, self.sentences = root, sentences
        self.teacher = LocalModel(kind="local", path=str(teacher_folder))
        if online:
            write_online(root / "cache", locate(self.teacher), sentences, LAYERS, 32)
        else:
            build_cache(root / "cache", locate(self.teacher), sentences, LAYERS, 32, "cuda")
        self.lines: list[dict[str, float]] = []

    def train(self, on_line: Any = None, loss: Any = None, **train: Any) -> dict[str, Any]:
        settings = {"device": "cuda", "precision": "bf16", "epochs": 4, **train}
        note = on_line or (lambda _, line: self.lines.append(line))
        place = Project(self.root).checkpoint("tiny", 1)
        variant = tiny_variant(train=settings, loss=loss or {}, **WIDE)
        return train_student(variant, self.teacher, 1, self.sentences, self.root / "cache", place, note)

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(Project(self.root).checkpoint("tiny", 1).student / "model.safetensors")


@pytest.mark.parametrize("online", [False, True])
def test_the_captured_step_trains_like_the_plain_one(
    tmp_path: Path,
    teacher_folder: Path,
    sentences: list[str],
    online: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    plain = Run(tmp_path / "plain", teacher_folder, sentences, online)
    captured = Run(tmp_path / "captured", teacher_folder, sentences, online)
    plain.train(compile=False)
    captured.train()
    assert "one CUDA graph" in caplog.text
    assert len(plain.lines) == len(captured.lines)
    for ours, theirs in zip(plain.lines, captured.lines, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
        assert ours["learning_rate"] == theirs["learning_rate"]
    assert captured.lines[-1]["loss"] < 0.9 * captured.lines[0]["loss"]


def test_the_loss_of_the_library_trains_on_packed_rows_without_a_graph(
    tmp_path: Path, teacher_folder: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = Run(tmp_path, teacher_folder, sentences)
    run.train(loss=ADAPTIVE)
    assert "kernel by kernel, not compiled" in caplog.text
    assert run.lines[-1]["loss"] < 0.9 * run.lines[0]["loss"]


def test_an_interrupted_captured_training_goes_on(
    tmp_path: Path, teacher_folder: Path, sentences: list[str]
) -> None:
    whole = Run(tmp_path / "whole", teacher_folder, sentences)
    whole.train()
    cut = Run(tmp_path / "cut", teacher_folder, sentences)

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 10:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        cut.train(stop)
    cut.train()
    assert cut.lines[0]["step"] == 12
    assert cut.lines[-1]["loss"] == pytest.approx(whole.lines[-1]["loss"], rel=0.02)


def test_a_loss_that_breaks_is_named_with_its_step(
    tmp_path: Path, teacher_folder: Path, sentences: list[str]
) -> None:
    run = Run(tmp_path, teacher_folder, sentences)
    with pytest.raises(UserError, match="not finite at step"):
        run.train(learning_rate=1e30)
