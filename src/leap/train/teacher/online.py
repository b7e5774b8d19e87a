"""A teacher that runs along with the student: no cache, at the price of its forward pass in every epoch."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.core.files import write_with_checksum
from leap.models.locate import Located
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder, compile_layers
from leap.train.teacher.interface import Rows, TeacherInput, TeacherTokens
from leap.train.teacher.teacher_cache import identity_of
from leap.train.tokens import TokenizedText


def write_online(
    folder: Path, teacher: Located, sentences: Sequence[str], layers: list[int], max_length: int
) -> dict[str, Any]:
    """Write the manifest of a teacher that will run online, in the place of a cache: a cache's without shards."""
    encoder = open_model(teacher.folder, max_length).encoder
    manifest = identity_of(teacher, encoder, sentences, layers, max_length) | {"online": True, "shards": []}
    for path in folder.glob("shard-*"):
        path.unlink()
    write_with_checksum(folder / "manifest.json", manifest)
    return manifest


class OnlineTeacher:
    """The teacher's own encoder, in inference only."""

    def __init__(
        self, teacher: Located, sentences: Sequence[str], manifest: dict[str, Any], device: torch.device,
        precision: str, tokens: Path,
    ) -> None:  # fmt: skip
        """Load the teacher, and tokenize the sentences with its tokenizer, cached in the folder `tokens`."""
        self.layers: list[int] = manifest["layers"]
        self.width: int = manifest["width"]
        opened = open_model(teacher.folder, manifest["max_length"])
        self._encoder = opened.encoder.to(device).requires_grad_(False)
        self._layers = torch.tensor(self.layers, device=device)
        self._text = TokenizedText.cached(tokens, sentences, opened.tokenizer)
        self._narrow = precision == "bf16"
        self.packs = self._encoder.packs
        self._longest = int(self._text.lengths.max())
        self._tokens = 0

    def reserve(self, batches: Iterable[Rows]) -> None:
        self._tokens = self._text.largest(batches)

    def inputs(self, rows: Rows, fixed: bool) -> TeacherTokens:
        if fixed:
            batch = self._text.packed(rows, self._tokens, self._longest)
            return TeacherTokens(batch, torch.arange(len(rows)))
        order = np.argsort(self._text.lengths[rows], kind="stable")
        return TeacherTokens(self._text.batch(rows[order]), torch.from_numpy(np.argsort(order)))

    @torch.no_grad()
    def vectors(self, given: TeacherInput) -> Tensor:
        assert isinstance(given, TeacherTokens)
        device = given.places.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._narrow, cache_enabled=False):
            pooled = self._encoder(given.batch)
        vectors: Tensor = pooled.index_select(0, self._layers).index_select(1, given.places)
        return vectors

    def compile(self) -> None:
        if isinstance(self._encoder, Encoder):
            compile_layers(self._encoder)
