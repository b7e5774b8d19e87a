"""Encoded vectors on disk, by content: whoever asks for the same vectors again reads them.

A file's name says what it holds: the hash of the model's files, of how the model was opened, of the code that
computes, of the texts and of how they were encoded. So nothing ever has to be invalidated; the least recently
used files are deleted once all files together exceed the bound. Files appear whole; one whose content is not
what was written is deleted.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from leap.core.files import hashes_of, sha256_of_json, sha256_of_sentences, whole_file
from leap.core.source_code import code_of
from leap.core.tensor_files import DamagedError, load_with_checksum, save_with_checksum
from leap.exits import LeapEncoder
from leap.exits.calibration import FILE as CALIBRATION

# A folder that git ignores, with the other data.
FOLDER = Path("data/vectors")
# Files of a model folder that say when to leave, or nothing: they do not change what layers compute.
NOT_OF_THE_MODEL = ("leap.json", CALIBRATION, "README.md", "SHA256SUMS")
# The code that computes vectors and exits.
CODE = ("models/**/*", "exits/**/*", "evaluate/encode.py")
# The libraries between a text and its vector.
LIBRARIES = ("torch", "tokenizers", "transformers")

logger = logging.getLogger(__name__)

Vectors = dict[str, Tensor]


@dataclass(frozen=True)
class VectorCache:
    """A bounded folder of vectors.

    folder: holds one file an entry.
    limit: bytes of all files together; an entry that is larger is not stored.
    """

    folder: Path
    limit: int

    def vectors(
        self,
        model: LeapEncoder,
        texts: Sequence[str],
        what: str,
        compute: Callable[[], Vectors],
        prompt_name: str | None = None,
    ) -> Vectors:
        """Return the vectors of texts: read if they are there, else computed and stored.

        `what` says which vectors, with all that they depend on next to the model, the texts and `prompt_name`.
        """
        path = self.folder / f"{entry_name(model, texts, what, prompt_name)}.safetensors"
        vectors = _read(path)
        if vectors is None:
            vectors = compute()
            self._store(path, vectors)
        return vectors

    def _store(self, path: Path, vectors: Vectors) -> None:
        if sum(tensor.nbytes for tensor in vectors.values()) > self.limit:
            return
        try:
            with whole_file(path) as temporary:
                save_with_checksum(vectors, temporary)
                _mark_used(temporary)
            self._make_room(path)
        except (OSError, SafetensorError) as error:
            # The vectors are there, only not for the next one who asks.
            logger.warning("%s could not be written (%s): encoding is repeated next time", path, error)

    def _make_room(self, newest: Path) -> None:
        files = []
        for file in self.folder.glob("*.safetensors"):
            try:
                files.append((file.stat().st_mtime_ns, file.stat().st_size, file))
            except FileNotFoundError:
                continue  # another process made room meanwhile
        excess = sum(size for _, size, _ in files) - self.limit
        for _, size, file in sorted(files):
            if excess <= 0:
                return
            if file != newest:
                file.unlink(missing_ok=True)
                excess -= size


def vector_cache(gigabytes: float, folder: Path = FOLDER) -> VectorCache | None:
    """Open the cache of `evaluation.cache_gb`; None for 0."""
    return VectorCache(folder, int(gigabytes * 1e9)) if gigabytes else None


def entry_name(model: LeapEncoder, texts: Sequence[str], what: str, prompt_name: str | None = None) -> str:
    return sha256_of_json(
        {
            "model": hashes_of(model.folder, NOT_OF_THE_MODEL),
            "opened": {
                "max_length": model.tokenizer.max_length,
                "prompt": model.prompts.text(None, prompt_name),
                "quantize": model.quantize,
                "dtype": str(model.encoder.weight.dtype),
                "device": str(model.device),
            },
            "code": code_of(*CODE),
            "libraries": {name: version(name) for name in LIBRARIES},
            "texts": sha256_of_sentences(texts),
            "what": what,
        }
    )


def _read(path: Path) -> Vectors | None:
    try:
        vectors, _ = load_with_checksum(path)
    except FileNotFoundError:
        return None
    except (OSError, DamagedError) as error:
        logger.warning("%s is damaged (%s): it is deleted and encoded again", path, error)
        path.unlink(missing_ok=True)
        return None
    _mark_used(path)
    return vectors


def _mark_used(path: Path) -> None:
    """Make a file the last one to go when room is needed; the kernel's own times are coarser."""
    now = time.time_ns()
    with suppress(FileNotFoundError):
        os.utime(path, ns=(now, now))
