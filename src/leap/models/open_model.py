"""A model folder, opened: by the fast packed encoder where it is shown to give the reference's vectors.

The packed encoder reads what it knows of the BERT family. What it does not know, transformers and
sentence-transformers do; so before it is used it is compared with them, text to vector, at every layer. The
outcome is remembered by what the folder's files say, and a model is compared once.
"""

import json
import logging
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.files import sha256_of, sha256_of_json, whole_file
from leap.core.project import user_cache
from leap.core.source_code import code_of
from leap.models.batches import by_length
from leap.models.find import CHANGING
from leap.models.folder import UnsupportedError
from leap.models.library_tokenizer import LibraryTokenizer
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.models.pooling import normalizes
from leap.models.tokenizer import SentenceTokenizer
from leap.models.walk import Shape
from leap.models.weights import check_finite, tensor_layout

if TYPE_CHECKING:
    from leap.models.reference import ReferenceEncoder

log = logging.getLogger(__name__)

LEAST_COSINE = 0.9999
# Words of a model's vocabulary that it is compared on, and rows together.
WORDS = 24
TOGETHER = 4
# Upper and lower case, accents, spaces, another script, an emoji, one word, no word, and more than fits.
TEXTS = (
    "The Quick brown fox.",
    "  Un Café,\tnaïve   résumé — 24 % (sic)  ",
    "你好 Мир שלום 👩‍👧",
    "word",
    "",
    "A longer sentence, so that not all of the rows in the batch have the same length; isn't that so?",
    "long " * 600,
)


@dataclass(frozen=True)
class Agreement:
    """Why a fast part is not used for a folder; None where it gives what the reference gives.

    encoder: of the packed encoder.
    tokenizer: of the folder's tokenizer.json, read alone.
    """

    encoder: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class OpenModel:
    """A folder's encoder and tokenizer.

    normalizes: the folder's modules end by scaling vectors to length 1, which the encoder leaves out.
    """

    encoder: "Encoder | ReferenceEncoder"
    tokenizer: SentenceTokenizer | LibraryTokenizer
    normalizes: bool


def open_model(folder: Path, max_length: int | None = None, dtype: torch.dtype = torch.float32) -> OpenModel:
    """Open a folder that `find_model` has checked, on the CPU.

    Args:
        folder: the model's.
        max_length: the longest row in tokens, the folder's own if None.
        dtype: to compute in. LeapEncoder takes the folder's own (`leap.models.device.own_dtype`). Training takes
            float32 whatever the folder says: a step is often smaller than what half precision resolves, so master
            weights are float32 and autocast narrows the products; a teacher's targets are rounded once, when they
            are cached.

    Raises:
        UserError: it is damaged, or neither way computes it.
    """
    opened = _open(folder, dtype)
    if max_length is not None:
        opened.tokenizer.max_length = min(max_length, opened.encoder.config.max_tokens)
    return opened


def read_shape(folder: Path) -> Shape:
    """Read the depth and width of a model, without its weights where config.json says both."""
    try:
        normalizes(folder)
        return EncoderConfig.load(folder)
    except UnsupportedError:
        return open_model(folder).encoder.config


def _open(folder: Path, dtype: torch.dtype) -> OpenModel:
    try:
        fast = OpenModel(Encoder.load(folder), SentenceTokenizer(folder), normalizes(folder))
    except UnsupportedError as error:
        return _reference(folder, str(error).removeprefix(f"{folder}/"), dtype)
    agreement = _agreement(folder, fast)
    if agreement.encoder is not None:
        return _reference(folder, agreement.encoder, dtype)
    if dtype != torch.float32:
        for name, parameter in fast.encoder.to(dtype).named_parameters():
            check_finite(folder, name, parameter.detach())
    if agreement.tokenizer is None:
        return fast
    log.info("%s: tokenized by transformers: %s", folder, agreement.tokenizer)
    return OpenModel(fast.encoder, LibraryTokenizer.open(folder), fast.normalizes)


def _reference(folder: Path, reason: str, dtype: torch.dtype) -> OpenModel:
    from leap.models.reference import ReferenceEncoder

    log.info("%s: computed by transformers, not by the packed encoder: %s", folder, reason)
    encoder = ReferenceEncoder(folder, dtype=dtype)
    tokenizer = LibraryTokenizer(encoder.transformer, folder)
    tokenizer(TEXTS)  # what it cannot do is said now, not at the first text
    return OpenModel(encoder, tokenizer, encoder.normalizes)


def _agreement(folder: Path, fast: OpenModel) -> Agreement:
    path = user_cache() / "agreement" / f"{identity(folder)}.json"
    try:
        return Agreement(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass  # not yet, or damaged: compared again
    agreement = compare(folder, fast)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(asdict(agreement)), encoding="utf-8")
    except (OSError, UserError) as error:
        log.debug("%s cannot be written (%s): the model is compared again next time", path, error)
    return agreement


@torch.inference_mode()
def compare(folder: Path, fast: OpenModel) -> Agreement:
    """Compare the packed encoder and the tokenizer with the reference."""
    from leap.models.reference import ReferenceEncoder

    reference = ReferenceEncoder(folder)
    library = LibraryTokenizer(reference.transformer, folder)
    library.max_length = min(library.max_length, fast.tokenizer.max_length)
    texts = (*TEXTS, *known_words(library))
    ids = library(texts)
    tokenizer = None
    for text, own, theirs in zip(texts, fast.tokenizer(texts), ids, strict=True):
        if own != theirs:
            tokenizer = f"tokenizer.json alone gives other tokens for {text[:40]!r}"
            break
    if fast.normalizes != reference.normalizes:
        return Agreement("sentence-transformers ends it with other modules", tokenizer)
    for _, batch in by_length([row for row in ids if row], TOGETHER):
        own, theirs = fast.encoder(batch), reference(batch)
        if own.shape != theirs.shape:
            return Agreement(f"vectors have the form {list(theirs.shape)}, not {list(own.shape)}", tokenizer)
        cosines = F.cosine_similarity(own.double(), theirs.double(), dim=-1).amin(1)
        for layer, cosine in enumerate(cosines.tolist()):
            if not cosine >= LEAST_COSINE:
                return Agreement(
                    f"at layer {layer} its vectors have cosine {cosine:.4f} to the model's", tokenizer
                )
    return Agreement(None, tokenizer)


def known_words(tokenizer: LibraryTokenizer) -> list[str]:
    """Return words of the model's own vocabulary, in lower case, in capitals and both: a language it knows.

    And its special and added tokens, which may stand in another file than tokenizer.json.
    """
    pieces = (piece.strip("#▁Ġ").lower() for piece in tokenizer.pieces())
    words = [word for word in dict.fromkeys(pieces) if len(word) > 1 and word.isalpha()]
    chosen = words[:: max(1, len(words) // WORDS)]
    added = tokenizer.added_tokens()
    return [" ".join(chosen), " ".join(chosen[::2]).upper(), " ".join(chosen[1::2]).title(), *added]


def identity(folder: Path) -> str:
    """Hash all that the comparison depends on: how the folder says vectors are computed, our code, the libraries.

    Of weights their names, types and shapes: other values change both sides alike, so a model that is trained
    again is not compared again.
    """
    named = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {
        name: tensor_layout(path) if path.suffix == ".safetensors" else sha256_of(path)
        for name, path in named.items()
        if path.suffix in (".json", ".safetensors", ".txt", ".model") and path.name not in CHANGING
    }
    libraries = [version(name) for name in ("torch", "transformers", "sentence-transformers", "tokenizers")]
    return sha256_of_json([files, libraries, code_of("models/*")])
