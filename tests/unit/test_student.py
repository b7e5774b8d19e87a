"""How students start, and that the saved folder loads everywhere and gives the same vectors."""

from pathlib import Path

import pytest
import torch
from tiny_models import MakeFolder
from tiny_settings import tiny_variant

from leap.core.errors import UserError
from leap.core.settings.training import StudentSettings
from leap.exits import LeapEncoder
from leap.models.packed_encoder import Encoder
from leap.train.student import save_student, start_student

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
    kept = (teacher.words.weight @ basis).square().sum()
    best = torch.linalg.svdvals(teacher.words.weight)[:8].square().sum()
    assert kept.item() == pytest.approx(best.item(), rel=1e-4)


def test_a_cold_start_depends_on_its_seed_only(tiny_folder: Path) -> None:
    first, again, other = (
        start_student(student(), tiny_folder, COUNTS, seed)[0].layers[0].qkv.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


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


def test_a_checkpoint_start_keeps_its_first_layers_and_refuses_another_shape(make_folder: MakeFolder) -> None:
    folder = make_folder(layers=5, width=16)
    found = Encoder.load(folder)
    shape = {
        "width": 16,
        "heads": found.config.heads,
        "intermediate": found.config.intermediate,
        "start": {"kind": "local", "path": str(folder)},
    }
    encoder, _ = start_student(student(layers=3, **shape), folder, COUNTS, seed=1)
    assert torch.equal(encoder.layers[2].down.weight, found.layers[2].down.weight)
    with pytest.raises(UserError, match="has 5 layers, 7 were asked for"):
        start_student(student(layers=7, **shape), folder, COUNTS, seed=1)
    with pytest.raises(UserError, match=r"student\.width is 8, but the weights it starts from have 16"):
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
    found = ours.encode(sentences, strategy="full", convert_to_tensor=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
