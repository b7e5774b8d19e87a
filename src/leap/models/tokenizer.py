"""Text to token ids, as sentence-transformers makes them of the model's own folder."""

import json
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.models.folder import ModelFolder
from leap.models.packed_encoder import EncoderConfig

# sentence-transformers reads the first of these that there is.
_SENTENCE_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


FILE = "tokenizer.json"
# Of tokenizers from before tokenizer.json: BERT's, byte-level BPE's, SentencePiece's.
VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")

# The multiple that tables of embeddings are rounded up to for a GPU's tensor cores, at most.
ROUNDED_UP = 128

log = logging.getLogger(__name__)


class SentenceTokenizer:
    """The fast tokenizer of a model folder, without padding."""

    def __init__(self, folder: Path, max_length: int | None = None) -> None:
        """Load the folder's tokenizer; `max_length` is the longest row in tokens, the folder's own if None.

        Raises:
            UserError: the folder has no tokenizer, it is damaged, or has tokens that the model has not.
        """
        inside = ModelFolder.read(folder).transformer
        self._path = inside / FILE
        self._tokenizer = read_tokenizer(self._path)
        self.sha256 = hash_tokenizer(folder)
        config = EncoderConfig.load(folder)
        self._limit = config.max_tokens
        tokens = self._tokenizer.get_vocab()
        check_rows(tokens, config.vocabulary, inside, [FILE])
        last = max(tokens.values(), default=-1)
        if config.vocabulary - last > ROUNDED_UP:
            # No proof: tables are rounded up, and some models have unused rows.
            log.warning(
                "%s has token ids up to %d, the model next to it %d embeddings: is it this model's tokenizer?",
                *(inside / FILE, last, config.vocabulary),
            )
        if lowers_case(folder):
            _lower(self._tokenizer)
        self._tokenizer.no_padding()
        self._side = _read(inside / "tokenizer_config.json").get("truncation_side", "right")
        self.max_length = max_length or folder_max_length(folder)

    @property
    def max_length(self) -> int:
        """Return the longest row in tokens, special tokens included; setting it cuts later texts there."""
        return self._max_length

    @max_length.setter
    def max_length(self, length: int) -> None:
        check_length(length, self._limit)
        self._max_length = length
        self._tokenizer.enable_truncation(length, direction=self._side)

    def backend(self) -> Tokenizer:
        return read_tokenizer(self._path)

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, special tokens included, at most `max_length` of them."""
        # A lone surrogate is no text that the tokenizer's UTF-8 could carry.
        texts = [text.encode("utf-8", "replace").decode() for text in sentences]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]


def check_length(length: int, limit: int | None) -> None:
    """Refuse, by a ValueError, a longest row below 2 or above the model's positions."""
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise ValueError(f"max_seq_length {length!r} must be a whole number of at least 2")
    if limit is not None and length > limit:
        raise ValueError(f"max_seq_length {length} is above the model's {limit} positions")


def hash_tokenizer(folder: Path) -> str:
    """Return the sha256 of tokenizer.json, else of what transformers makes of the folder's vocabulary."""
    path = ModelFolder.read(folder).transformer / FILE
    return sha256_of(path) if path.is_file() else sha256(read_tokenizer(path).to_str().encode()).hexdigest()


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json; where it is missing, what transformers makes of an older vocabulary in its folder."""
    if not path.is_file():
        return _convert(path.parent)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises no class of its own
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(f"{path} is not a tokenizer ({reason}): fetch the model again") from None


def _convert(folder: Path) -> Tokenizer:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise UserError(
            f"{folder} has no tokenizer.json, nor a vocabulary that transformers makes one of "
            f"({', '.join(VOCABULARIES)}): fetch the model with its tokenizer"
        )
    from transformers import AutoTokenizer

    try:
        made = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)  # nosec B615  # a folder on disk, nothing is fetched
        tokenizer: Tokenizer = made.backend_tokenizer
    except Exception as error:  # noqa: BLE001 - whatever a damaged vocabulary makes a tokenizer's class raise
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(
            f"{folder} has no tokenizer.json, and transformers makes none of its vocabulary ({reason}): fetch the "
            "model again"
        ) from None
    return tokenizer


def check_rows(tokens: Mapping[str, int], rows: int, folder: Path, files: Sequence[str]) -> None:
    """Refuse tokens for which the model's table of embeddings has no row.

    Args:
        tokens: the id of each.
        rows: of the table.
        folder, files: where the tokens come from, for the message.

    Raises:
        UserError: an id is not below `rows`.
    """
    token = max(tokens, key=tokens.__getitem__, default=None)
    if token is not None and tokens[token] >= rows:
        raise UserError(
            f"{folder}: its tokenizer's token {token!r} has id {tokens[token]}, its model {rows} rows of "
            f"embeddings: fetch the right tokenizer, or repair the token in {', '.join(files)}"
        )


def folder_max_length(folder: Path) -> int:
    """Return the longest input in tokens: the sentence-transformers config's, else the tokenizer's own.

    Never above what the table of positions holds, where sentence-transformers would fail on a long input.
    """
    limit = EncoderConfig.load(folder).max_tokens
    folder = ModelFolder.read(folder).transformer
    length = sentence_settings(folder).get("max_seq_length")
    if length is None:
        length = _read(folder / "tokenizer_config.json").get("model_max_length", limit)
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 2:
        raise UserError(f"{folder}: the longest input, {length!r}, is not a number of tokens: fetch it again")
    return int(min(length, limit))


def lowers_case(folder: Path) -> bool:
    """Tell whether the sentence-transformers config has text lowered before the tokenizer's own rules."""
    return bool(sentence_settings(ModelFolder.read(folder).transformer).get("do_lower_case", False))


def _lower(tokenizer: Tokenizer) -> None:
    own = tokenizer.normalizer
    steps = [normalizers.Lowercase()] if own is None else [normalizers.Lowercase(), own]
    tokenizer.normalizer = normalizers.Sequence(steps)


def sentence_settings(folder: Path) -> dict[str, Any]:
    """Read sentence-transformers' settings of the transformer in a folder; none where it has no such file."""
    return next((_read(folder / name) for name in _SENTENCE_CONFIGS if (folder / name).exists()), {})


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a JSON object ({error}): fetch the model again") from None
