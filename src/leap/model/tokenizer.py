"""Text to token ids, as the model's own folder says."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from leap.errors import UserError
from leap.files import sha256_of


class SentenceTokenizer:
    """The fast tokenizer of a model folder, without padding."""

    def __init__(self, folder: Path, max_length: int | None = None) -> None:
        """Loads `tokenizer.json`.

        Args:
            folder: a Hugging Face or sentence-transformers model folder.
            max_length: longest row in tokens, special tokens included; the folder's own if None.

        Raises:
            UserError: the folder has no tokenizer.json.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            raise UserError(f"{folder} has no tokenizer.json: save the model with its fast tokenizer")
        self.max_length = max_length or folder_max_length(folder)
        self.sha256 = sha256_of(path)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_length)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, special ones included."""
        return self._tokenizer.get_vocab_size()

    def __call__(self, sentences: Sequence[str]) -> list[list[int]]:
        """The token ids of each sentence, special tokens included, at most `max_length` of them."""
        # A lone surrogate is no text that the tokenizer's UTF-8 could carry.
        texts = [text.encode("utf-8", "replace").decode() for text in sentences]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]


def folder_max_length(folder: Path) -> int:
    """The longest input in tokens: sentence_bert_config.json's, but not above the position embeddings."""
    positions = int(json.loads((folder / "config.json").read_text())["max_position_embeddings"])
    sentence_config = folder / "sentence_bert_config.json"
    if not sentence_config.exists():
        return positions
    length = json.loads(sentence_config.read_text()).get("max_seq_length")
    return positions if length is None else min(int(length), positions)
