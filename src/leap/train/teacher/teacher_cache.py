"""The teacher's pooled layers, cached as shards with a manifest (docs/architecture.md)."""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of, sha256_of_sentences, whole_file, write_with_checksum
from leap.core.progress import bar
from leap.models.batches import by_length
from leap.models.device import resolve_device
from leap.models.locate import Located
from leap.models.open_model import OpenModel, open_model
from leap.models.tokenizer import hash_tokenizer
from leap.models.walk import Walkable
from leap.train.teacher.interface import Rows, TeacherInput

log = logging.getLogger(__name__)

Halves = np.ndarray[Any, np.dtype[np.float16]]
# What the manifest says of a shard: its file, its rows, its sha256.
Shard = dict[str, Any]

SHARD_BYTES = 2**30
SHARD_ROWS = 1024
# Tokens computed together: what fits a CPU's caches, and what keeps a card busy.
BATCH_TOKENS = {"cpu": 2**11, "cuda": 2**15}
# Sentences that are tokenized and computed before their vectors are written.
ROWS_TOGETHER = 2**14


def build_cache(
    folder: Path,
    teacher: Located,
    sentences: Sequence[str],
    layers: list[int],
    max_length: int,
    device: str,
    each: Callable[[Callable[[int], Shard], Sequence[int]], Iterable[Shard]] = map,
) -> dict[str, Any]:
    """Compute what is missing of the cache, shard by shard, and close it with its manifest, which is returned.

    Args:
        folder: of the cache; shards of an interrupted run with the same identity stay.
        layers: teacher layers to store, ascending, 0 being the embedding layer.
        max_length: tokens; not more than the student sees.
        each: applies a function to the numbers of the shards: `map`, or `map_on_spark`.

    Raises:
        UserError: the teacher cannot be read, or its vectors are not finite.
    """
    writer = _ShardWriter(folder, teacher.folder, sentences, layers, max_length, device)
    identity = identity_of(teacher, writer.model.encoder, sentences, layers, max_length)
    folder.mkdir(parents=True, exist_ok=True)
    whole = _begin(folder, identity)
    if whole is not None:
        log.info("the teacher cache is whole: nothing to compute")
        _end(folder)
        return whole
    shards = []
    with bar(total=len(sentences), unit="sentence", desc="teacher") as progress:
        for shard in each(writer.write, range(-(-len(sentences) // writer.rows))):
            shards.append(shard)
            progress.update(shard["rows"])
    manifest = identity | {"shards": shards}
    write_with_checksum(folder / "manifest.json", manifest)
    _end(folder)
    return manifest


@dataclass(frozen=True)
class _ShardWriter:
    """Computes any shard of a cache, in this process or in one to which it is sent."""

    folder: Path
    teacher: Path
    sentences: Sequence[str]
    layers: list[int]
    max_length: int
    device: str

    @cached_property
    def model(self) -> OpenModel:
        opened = open_model(self.teacher, self.max_length)
        opened.encoder.to(resolve_device(self.device))
        return opened

    @cached_property
    def rows(self) -> int:
        return _rows_per_shard(len(self.sentences), len(self.layers) * self.model.encoder.config.width * 2)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model behind: who is sent this opens it."""
        return {name: value for name, value in vars(self).items() if name != "model"}

    def write(self, number: int) -> Shard:
        """Compute a shard unless it is whole, and say what the manifest has of it."""
        part = range(number * self.rows, min((number + 1) * self.rows, len(self.sentences)))
        path = self.folder / f"shard-{number:05d}.bin"
        if not _is_whole(path):
            encoder, tokenizer = self.model.encoder, self.model.tokenizer
            cuts = [*part[::ROWS_TOGETHER], part.stop]
            pieces = (self.sentences[first:last] for first, last in pairwise(cuts))
            _write_shard(
                path, (_pool_layers(encoder, tokenizer(piece), self.layers) for piece in pieces), part.start
            )
        shard = read_json(path.with_suffix(".json"), "dvc repro cache_teacher")
        return {key: shard[key] for key in ("file", "rows", "sha256")}


class TeacherCache:
    """A whole cache, opened for reading."""

    packs = True

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Open the cache of a manifest, and refuse it if a shard is missing or changed."""
        self.layers: list[int] = manifest["layers"]
        self.width: int = manifest["width"]
        self._starts = np.cumsum([0, *(shard["rows"] for shard in manifest["shards"])])
        self._shards = [self._open(folder, shard) for shard in manifest["shards"]]

    def reserve(self, batches: Iterable[Rows]) -> None: ...

    def inputs(self, rows: Rows, fixed: bool = True) -> Tensor:
        """Return the stored vectors, [B, S, D_t] float16."""
        return torch.from_numpy(self._read(rows))

    def compile(self) -> None: ...

    def vectors(self, given: TeacherInput) -> Tensor:
        assert isinstance(given, Tensor)
        return given.transpose(0, 1).float()

    def _read(self, indices: Rows) -> Halves:
        out = np.empty((len(indices), len(self.layers), self.width), dtype=np.float16)
        size = 2 * len(self.layers) * self.width
        room = out.data.cast("B")
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        for place, (number, row) in enumerate(zip(shards, indices - self._starts[shards], strict=True)):
            # Read, not mapped: for a row of a kilobyte the system may map two megabytes (large folios).
            part = room[place * size : (place + 1) * size]
            if os.preadv(self._shards[number].fileno(), [part], int(row) * size) != size:
                raise UserError(
                    f"{self._shards[number].name!s} was cut while it was in use: `dvc repro` makes it again"
                )
        return out

    def _open(self, folder: Path, shard: dict[str, Any]) -> FileIO:
        path: Path = folder / shard["file"]
        if not path.exists() or sha256_of(path) != shard["sha256"]:
            raise UserError(
                f"{path} is missing or does not match the manifest's sha256: "
                "delete the folder and run `dvc repro cache_teacher`"
            )
        return path.open("rb", buffering=0)


def identity_of(
    teacher: Located, encoder: Walkable, sentences: Sequence[str], layers: list[int], max_length: int
) -> dict[str, Any]:
    """Return what the teacher's vectors are made from: the manifest's first part."""
    return {
        "teacher": teacher.sha256,
        "tokenizer": hash_tokenizer(teacher.folder),
        "pooling": encoder.pooling,
        "max_length": max_length,
        "dtype": "float16",
        "width": encoder.config.width,
        "layers": layers,
        "rows": len(sentences),
        "sentences": sha256_of_sentences(sentences),
    }


def _begin(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of a cache that is whole already; else leave only shards of the same identity."""
    manifest, building = folder / "manifest.json", folder / "building.json"
    content = _as_written(manifest)
    if content is not None:
        made_from = {key: value for key, value in content.items() if key != "shards"}
        if made_from == identity and all(_holds(folder, shard) for shard in content["shards"]):
            return content
    if _as_written(building) != identity:
        for path in (*folder.glob("shard-*"), manifest):
            path.unlink(missing_ok=True)
        write_with_checksum(building, identity)
    return None


def _as_written(path: Path) -> dict[str, Any] | None:
    """The content of one of the cache's own JSON files; None where it is missing or damaged."""
    if not path.exists():
        return None
    with suppress(UserError):
        content = read_json(path, "dvc repro cache_teacher")
        if isinstance(content, dict) and content.pop("checksum", None) is not None:
            return content
    log.warning("%s is damaged: what it speaks of is computed again", path)
    return None


def _holds(folder: Path, shard: dict[str, Any]) -> bool:
    path = folder / shard["file"]
    if path.exists() and sha256_of(path) == shard["sha256"]:
        return True
    log.warning("%s is missing or was changed after it was written: it is computed again", path)
    return False


def _end(folder: Path) -> None:
    for path in (*folder.glob("shard-*.json"), folder / "building.json"):
        path.unlink(missing_ok=True)


def _rows_per_shard(rows: int, row_bytes: int) -> int:
    # About 1 GB each, but a small cache has several too, so that a kill never costs all of it.
    return min(max(SHARD_ROWS, -(-rows // 16)), max(1, SHARD_BYTES // row_bytes))


def _is_whole(path: Path) -> bool:
    shard = _as_written(path.with_suffix(".json"))
    return shard is not None and _holds(path.parent, shard)


def _write_shard(path: Path, pieces: Iterable[Halves], start: int) -> None:
    rows = 0
    with whole_file(path) as temporary, temporary.open("wb") as file:
        for piece in pieces:
            finite = np.isfinite(piece).all(axis=(1, 2))
            if not finite.all():
                row = start + rows + int(np.argmin(finite))
                raise UserError(
                    f"the teacher's vector of sentence {row} of data/sentences.parquet is not finite: its "
                    "weights are damaged, fetch it again"
                )
            # Not ndarray.tofile, whose error on a full disk does not say that it is one.
            file.write(np.ascontiguousarray(piece).data)
            rows += len(piece)
    write_with_checksum(path.with_suffix(".json"), {"file": path.name, "rows": rows, "sha256": sha256_of(path)})


@torch.inference_mode()
def _pool_layers(
    encoder: Walkable, token_ids: list[list[int]], layers: list[int]
) -> "np.ndarray[Any, np.dtype[np.float16]]":
    out = np.empty((len(token_ids), len(layers), encoder.config.width), dtype=np.float16)
    mean = max(1, sum(map(len, token_ids)) // len(token_ids))
    device = encoder.weight.device
    for rows, batch in by_length(token_ids, max(1, BATCH_TOKENS[device.type] // mean)):
        out[rows] = encoder(batch.to(device))[layers].transpose(0, 1).half().cpu().numpy()
    return out
