"""How students start, and that the saved folder loads everywhere and gives the same vectors."""

from pathlib import Path

import pytest
import torch
from tiny_models import MakeFolder, write_modules
from tiny_settings import tiny_variant
from zoo import write_model

from leap.core.errors import UserError
from leap.core.project import Checkpoint
from leap.core.settings.sources import LocalModel
from leap.core.settings.training import StudentSettings
from leap.exits import LeapEncoder
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.models.reference import ReferenceEncoder
from leap.train.student import save_student, start_student
from leap.train.teacher.prepare import prepare_teacher
from leap.train.train_student import train_student

COUNTS = torch.ones(65, dtype=torch.int64)


def student(**changes: object) -> StudentSettings:
    return tiny_variant(student=changes).student


def test_a_cold_start_takes_the_teachers_embeddings_in_their_main_directions(tiny_folder: Path) -> None:
    encoder, basis = start_student(student(), tiny_folder, COUNTS, seed=1)
    teacher = Encoder.load(tiny_folder)
    assert basis is not None
    torch.testing.assert_close(basis.T @ basis, torch.eye(8))
    torch.testing.assert_close(encoder.words.weight, teacher.words.weight @ basis)
    # No other 8 directions keep more of the (equally frequent) word vectors: Eckart and Young.
    captured = (teacher.words.weight @ basis).square().sum()
    best = torch.linalg.svdvals(teacher.words.weight)[:8].square().sum()
    assert captured.item() == pytest.approx(best.item(), rel=1e-4)


def test_a_cold_start_depends_on_its_seed_only(tiny_folder: Path) -> None:
    first, again, other = (
        start_student(student(), tiny_folder, COUNTS, seed)[0].layers[0].qkv.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "modernbert"])
def test_a_model_is_read_without_a_draw_from_the_seed(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first time it is compared with the reference, later that is remembered: a student's start must not tell.
    monkeypatch.setenv("LEAP_CACHE", str(tmp_path / "cache"))
    folder = write_modules(write_model(tmp_path / "model", architecture))
    for _ in range(2):
        torch.manual_seed(7)
        before = torch.get_rng_state()
        open_model(folder)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("order", "sources"), [("stack", [0, 1, 0, 1]), ("double", [0, 0, 1, 1])])
def test_a_grown_student_copies_the_teachers_layers(
    make_folder: MakeFolder, order: str, sources: list[int]
) -> None:
    folder = make_folder(layers=2, width=8)
    teacher = Encoder.load(folder)
    shape = student(
        heads=teacher.config.heads,
        intermediate=teacher.config.intermediate,
        start={"kind": "grow", "order": order},
    )
    encoder, basis = start_student(shape, folder, COUNTS, seed=1)
    assert basis is None
    for layer, source in zip(encoder.layers, sources, strict=True):
        assert torch.equal(layer.up.weight, teacher.layers[source].up.weight)


def test_a_retrofit_starts_as_the_teacher_and_in_its_shape_only(make_folder: MakeFolder) -> None:
    folder = make_folder(layers=3, width=16)
    teacher = Encoder.load(folder)
    shape = {
        "width": 16,
        "heads": teacher.config.heads,
        "intermediate": teacher.config.intermediate,
        "start": {"kind": "teacher"},
    }
    encoder, basis = start_student(student(layers=3, **shape), folder, COUNTS, seed=1)
    assert basis is None
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], tensor), name
    with pytest.raises(UserError, match=r"student\.layers is 2, but the weights it starts from .* have 3"):
        start_student(student(layers=2, **shape), folder, COUNTS, seed=1)


def test_a_checkpoint_start_keeps_its_first_layers_and_refuses_another_shape(make_folder: MakeFolder) -> None:
    folder = make_folder(layers=5, width=16)
    loaded = Encoder.load(folder)
    shape = {
        "width": 16,
        "heads": loaded.config.heads,
        "intermediate": loaded.config.intermediate,
        "start": {"kind": "local", "path": str(folder)},
    }
    encoder, _ = start_student(student(layers=3, **shape), folder, COUNTS, seed=1)
    assert torch.equal(encoder.layers[2].down.weight, loaded.layers[2].down.weight)
    with pytest.raises(UserError, match="has 5 layers, 7 were asked for"):
        start_student(student(layers=7, **shape), folder, COUNTS, seed=1)
    with pytest.raises(UserError, match=r"student\.width is 8, but the weights it starts from .* have 16"):
        start_student(student(start=shape["start"]), folder, COUNTS, seed=1)


def test_the_saved_folder_gives_the_same_vectors_in_sentence_transformers(
    tmp_path: Path, tiny_folder: Path, sentences: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder, _ = start_student(student(), tiny_folder, COUNTS, seed=1)
    folder = tmp_path / "saved"
    folder.mkdir()
    save_student(encoder, folder, tiny_folder, 16)
    ours = LeapEncoder(folder, "cpu")
    assert ours.tokenizer.max_length == 16
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert theirs.max_seq_length == 16
    expected = theirs.encode(sentences, convert_to_tensor=True)
    vectors = ours.encode(sentences, strategy="full", convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["cached", "online"])
def test_a_student_trains_from_a_decoder(tmp_path: Path, sentences: list[str], mode: str) -> None:
    folder = write_modules(write_model(tmp_path / "m", "qwen3", side="left"), "lasttoken")
    source = LocalModel(kind="local", path=str(folder))
    variant = tiny_variant(train={"epochs": 12, "teacher": mode})
    prepare_teacher(tmp_path / "data" / "teacher", source, sentences, [variant], variant.train)
    place, lines = Checkpoint(tmp_path, "leap", 1), []
    train_student(
        variant, source, 1, sentences, tmp_path / "data" / "teacher", place, lambda _, line: lines.append(line)
    )
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert LeapEncoder(place.student, "cpu").encode(sentences, strategy="full").shape == (60, 8)


def test_a_decoder_learns_to_exit_itself(tmp_path: Path, sentences: list[str]) -> None:
    """Retrofit: the student starts as its teacher and keeps its architecture; early layers come near the last."""
    folder = write_modules(write_model(tmp_path / "m", "qwen3", side="left"), "lasttoken")
    source = LocalModel(kind="local", path=str(folder))
    shape = {"layers": 4, "width": 16, "heads": 2, "intermediate": 32, "max_length": 24}
    variant = tiny_variant(
        student={**shape, "start": {"kind": "teacher"}}, train={"epochs": 12, "learning_rate": 1e-3}
    )
    prepare_teacher(tmp_path / "data" / "teacher", source, sentences, [variant], variant.train)
    place = Checkpoint(tmp_path, "leap", 1)
    train_student(variant, source, 1, sentences, tmp_path / "data" / "teacher", place, lambda *_: None)
    before, after = LeapEncoder(folder, "cpu"), LeapEncoder(place.student, "cpu")
    assert isinstance(after.encoder, ReferenceEncoder)
    assert after.max_seq_length == 24
    wanted = before.encode(sentences, strategy="full")
    near = [
        (wanted * model.encode(sentences, strategy="fixed", layer=2)).sum(1).mean() for model in (before, after)
    ]
    assert near[1] > near[0] + 0.05, near
