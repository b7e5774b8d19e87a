"""The trainer: learns, resumes bit for bit, refuses another run's state, names a loss that breaks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_settings import ADAPTIVE, tiny_variant

import leap
from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.core.project import Checkpoint
from leap.core.settings.sources import LocalModel
from leap.exits import LeapEncoder
from leap.exits.calibrate.finish_model import finish_model
from leap.exits.calibrate.fit_predictors import fit_predictors
from leap.models.locate import locate
from leap.models.tokenizer import SentenceTokenizer
from leap.train.teacher import build_cache
from leap.train.tokens import TokenizedText, epoch_batches
from leap.train.train_student import train_student, training_seconds
from leap.train.trainer import Trainer, learning_rate_at


@pytest.fixture
def teacher(tiny_folder: Path) -> LocalModel:
    return LocalModel(kind="local", path=str(tiny_folder))


@pytest.fixture
def cache(tmp_path: Path, teacher: LocalModel, sentences: list[str]) -> Path:
    build_cache(tmp_path / "cache", locate(teacher), sentences, [0, 1, 2, 3, 4, 5], 32, "cpu")
    return tmp_path / "cache"


class Project:
    """The folders of one training."""

    def __init__(self, root: Path, teacher: LocalModel, cache: Path, sentences: list[str]) -> None:
        place = Checkpoint(root, "leap", 1)
        self.student, self.record, self.state = place.student, place.training, place.unfinished
        self._rest = (teacher, 1, sentences, cache, place)
        self.lines: list[tuple[int, dict[str, float]]] = []

    def train(self, on_line: Any = None, **changes: Any) -> dict[str, Any]:
        note = lambda step, line: self.lines.append((step, line))  # noqa: E731
        return train_student(tiny_variant(**changes), *self._rest, on_line or note)


@pytest.fixture
def project(tmp_path: Path, teacher: LocalModel, cache: Path, sentences: list[str]) -> Project:
    return Project(tmp_path / "a", teacher, cache, sentences)


def test_training_lowers_every_term_and_saves_what_leap_encoder_loads(project: Project) -> None:
    result = project.train(train={"epochs": 12})
    history = [line for _, line in project.lines]
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert history[-1]["loss_final"] < history[0]["loss_final"]
    assert result["checkpoint"] == sha256_of(project.student / "model.safetensors")
    model = LeapEncoder(project.student, "cpu")
    assert model.depth == 4
    assert np.linalg.norm(model.encode("some words")) == pytest.approx(1.0, abs=1e-5)
    assert not project.state.exists()


def test_the_bar_keeps_to_its_interval(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a logged step would show the estimate of the first one, which compiles on a card."""
    project.train(train={"epochs": 12, "log_every": 1})
    shown = capsys.readouterr().err.count("step/s")
    assert 1 <= shown < len(project.lines)


def test_an_interrupted_training_goes_on_and_ends_bit_for_bit_alike(
    project: Project, tmp_path: Path, teacher: LocalModel, cache: Path, sentences: list[str]
) -> None:
    project.train()
    other = Project(tmp_path / "b", teacher, cache, sentences)

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        other.train(stop)
    assert max(state.stem for state in other.state.iterdir()) == "step-00000006"
    assert not other.student.exists()
    other.train()
    assert other.lines[0][0] == 8  # lines come every second step, and the first six are done
    whole, resumed = (load_file(p.student / "model.safetensors") for p in (project, other))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert len((other.record / "history.jsonl").read_text().splitlines()) == len(project.lines)


def test_seconds_are_those_of_all_parts_of_a_training() -> None:
    """Steps of 100 sentences: twice 1 s before an interruption, 4 s for the two steps after it."""
    history = [
        {"step": step, "sentences_per_second": rate} for step, rate in ((1.0, 100.0), (2.0, 100.0), (4.0, 50.0))
    ]
    assert training_seconds(history, 100) == 6.0


def test_the_state_of_other_settings_is_not_gone_on_from(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(step: int, _: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        project.train(stop)
    project.train(loss={"beta": 0.9})
    assert "settings changed" in caplog.text
    assert project.lines[0][0] == 2


def test_a_kill_before_the_state_was_cleared_leaves_none(project: Project) -> None:
    project.train()
    project.state.mkdir()
    (project.state / "step-00000002.safetensors").touch()
    project.train()
    assert not project.state.exists()


def test_trained_heads_lie_next_to_the_weights_and_exits_go_through_them(
    project: Project, sentences: list[str]
) -> None:
    project.train()
    assert not (project.student / "heads.safetensors").exists()
    project.train(loss={"heads": True, "exit_contrast": 0.3})
    model = LeapEncoder(project.student, "cpu")
    assert model.heads is not None
    assert all((head - torch.eye(model.width)).abs().max() > 1e-3 for head in model.heads.maps)
    (_, pooled), *_ = model.pooled_layers(sentences, batch_size=len(sentences))
    order = next(iter(model.pooled_layers(sentences, batch_size=len(sentences))))[0]
    texts = [sentences[row] for row in order]
    left = model.encode(texts, strategy="fixed", layer=2, convert_to_tensor=True)
    expected = torch.nn.functional.normalize(pooled[2] @ model.heads.maps[1], dim=-1)
    torch.testing.assert_close(left, expected, atol=1e-5, rtol=0)
    # They are part of the model: a copy that lost them is refused, not exited without them.
    shutil.copytree(project.student, project.student.with_name("copy"))
    project.student.with_name("copy").joinpath("heads.safetensors").unlink()
    with pytest.raises(UserError, match=r"heads\.safetensors is missing"):
        LeapEncoder(project.student.with_name("copy"), "cpu")


def test_predictors_are_fitted_on_the_training_text_where_the_settings_say_so(
    project: Project, sentences: list[str], tmp_path: Path
) -> None:
    project.train()
    for wanted in (False, True):
        variant = tiny_variant(exit={"predictors": wanted})
        finish_model(project.student, tmp_path / "model", variant, sentences, [])
        assert (tmp_path / "model" / "predictors.safetensors").exists() == wanted
    model = LeapEncoder(tmp_path / "model", "cpu")
    assert model.rule.min_layer == 2
    pooled = torch.empty(model.depth + 1, len(sentences), model.width)
    for rows, vectors in model.pooled_layers(sentences):
        pooled[:, rows] = vectors
    expected = fit_predictors([pooled])
    torch.testing.assert_close(model.predictors.scores(pooled), expected.scores(pooled), atol=1e-3, rtol=0)
    model.encode(sentences, strategy="predictors")


def test_a_loss_that_is_not_finite_names_step_term_and_sentences(
    project: Project, monkeypatch: pytest.MonkeyPatch, sentences: list[str]
) -> None:
    monkeypatch.setattr("leap.train.objective.terms.late_loss", lambda *_: torch.tensor(torch.nan))
    with pytest.raises(UserError, match=r"step 1 \(term late\), in the batch that begins with: ") as caught:
        project.train()
    assert any(sentence in str(caught.value) for sentence in sentences)
    assert not project.student.exists()


def test_batches_hold_every_row_once_in_ascending_length_and_change_by_epoch() -> None:
    lengths = np.random.default_rng(0).integers(3, 40, 1000)
    batches = epoch_batches(lengths, 50, seed=1, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert all((np.diff(lengths[rows]) >= 0).all() for rows in batches)
    again, later = epoch_batches(lengths, 50, 1, 0), epoch_batches(lengths, 50, 1, 1)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    assert any((a != b).any() for a, b in zip(batches, later, strict=True))


def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    settings = tiny_variant(train={"learning_rate": 1.0, "warmup": 0.1}).train
    rates = [learning_rate_at(step, 100, settings) for step in (1, 5, 10, 55, 100)]
    assert rates == [pytest.approx(value) for value in (0.1, 0.5, 1.0, 0.5, 0.0)]


def test_biases_and_norms_are_not_decayed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Trainer] = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, *rest: (seen.append(self), train(self, *rest))[1])
    project.train()
    decayed, plain = seen[0].optimizer.param_groups
    assert decayed["weight_decay"] > 0 == plain["weight_decay"]
    assert all(p.ndim == 1 for p in plain["params"])


def test_the_newest_states_are_kept_and_a_damaged_one_costs_only_its_steps(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    every = {"checkpoint_every": 2, "keep_checkpoints": 2}

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 8:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        project.train(stop, train=every)
    states = sorted(project.state.iterdir())
    assert [state.stem for state in states] == ["step-00000006", "step-00000008"]
    states[-1].write_bytes(states[-1].read_bytes()[:1000])
    project.train(train=every)
    assert "step-00000008.safetensors cannot be read" in caplog.text
    assert "going on at step 6" in caplog.text
    assert project.lines[0][0] == 8


# What torchrun does, by its own interface, but the two processes are forks of one that has imported everything.
TORCHRUN = """
import sys
from pathlib import Path
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from train_tiny import main

one = {"min_nodes": 1, "max_nodes": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "tiny"}
elastic_launch(LaunchConfig(nproc_per_node=2, start_method="fork", **one), main)(Path(sys.argv[1]), *sys.argv[2:])
"""


@pytest.mark.parametrize("changes", [{}, {"loss": ADAPTIVE}], ids=["leap", "adaptive_layer"])
def test_two_processes_train_like_one_on_the_joint_batch(
    tmp_path: Path,
    tiny_folder: Path,
    teacher: LocalModel,
    cache: Path,
    sentences: list[str],
    project: Project,
    changes: dict[str, Any],
) -> None:
    project.train(**changes)
    root = tmp_path / "two"
    shutil.copytree(cache, root / "cache")
    (root / "sentences.txt").write_text("\n".join(sentences))
    command = [sys.executable, "-c", TORCHRUN, str(root), str(tiny_folder), json.dumps(changes)]
    support, source = Path(__file__).parents[1] / "support", Path(leap.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{support}"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    joint = Checkpoint(root, "leap", 1)
    one, two = (load_file(folder / "model.safetensors") for folder in (project.student, joint.student))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-4, rtol=1e-3)
    history = [line for _, line in project.lines]
    lines = [json.loads(line) for line in (joint.training / "history.jsonl").read_text().splitlines()]
    for ours, theirs in zip(history, lines, strict=True):
        assert {k: v for k, v in ours.items() if k != "sentences_per_second"} == pytest.approx(
            {k: v for k, v in theirs.items() if k != "sentences_per_second"}, rel=1e-3
        )


def test_mixed_batches_hold_every_length_and_almost_the_same_number_of_tokens() -> None:
    lengths = np.random.default_rng(0).integers(3, 40, 1000)
    batches = epoch_batches(lengths, 50, seed=1, epoch=0, mixed=True)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    totals = [int(lengths[rows].sum()) for rows in batches]
    assert (
        max(totals) - min(totals)
        < 50
        < np.ptp([int(lengths[rows].sum()) for rows in epoch_batches(lengths, 50, 1, 0)])
    )


def test_a_packed_batch_has_a_fixed_size_and_says_where_its_rows_lie(
    tiny_folder: Path, sentences: list[str]
) -> None:
    text = TokenizedText.of(sentences, SentenceTokenizer(tiny_folder, 32))
    rows = np.array([5, 40, 2])
    batch = text.packed(rows, 128, 32)
    assert batch.offsets is not None
    assert (batch.rows, len(batch.ids)) == (3, 128)
    for place in range(3):
        alone = text.batch(rows[place : place + 1])
        start, stop = batch.offsets[place], batch.offsets[place + 1]
        assert batch.ids[start:stop].tolist() == alone.ids.tolist()
        assert batch.positions[start:stop].tolist() == alone.positions.tolist()
    assert text.largest([rows, np.arange(60)]) == -(-int(text.lengths.sum()) // 128) * 128


def test_tokens_are_counted_over_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(0, 9, 100).astype(np.int32)
    text = TokenizedText(ids, np.array([40, 60]))
    monkeypatch.setattr("leap.train.tokens.COUNTED_TOGETHER", 33)
    assert text.counts(12).tolist() == np.bincount(ids, minlength=12).tolist()
