"""Tensors with the hash of their content: the same content has the same bytes, and no change goes unseen."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from leap.core.tensor_files import ENTRY, DamagedError, load_with_checksum, save_with_checksum

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([1, 2])}
NOTES = {"weights": "a" * 64, "made_by": "a test", "other": "x"}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    save_with_checksum(TENSORS, tmp_path / "a.safetensors", NOTES)
    tensors, notes = load_with_checksum(tmp_path / "a.safetensors")
    assert notes == NOTES
    assert tensors.keys() == TENSORS.keys()
    assert all(tensors[name].equal(TENSORS[name]) for name in TENSORS)


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    result = set()
    for number in range(20):
        save_with_checksum(TENSORS, tmp_path / f"{number}.safetensors", NOTES)
        result.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(result) == 1


OTHERS = [None, "no JSON", "5", json.dumps(NOTES), json.dumps({"content": "b" * 64})]


@pytest.mark.parametrize("entry", OTHERS)
def test_other_metadata_are_refused(tmp_path: Path, entry: str | None) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors", None if entry is None else {ENTRY: entry})
    with pytest.raises(DamagedError):
        load_with_checksum(tmp_path / "a.safetensors")
