"""Text to token ids by sentence-transformers itself: for whatever tokenizer.json alone does not say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from leap.core.errors import UserError
from leap.core.files import sha256_of_json
from leap.models.folder import ModelFolder
from leap.models.open_reference import first_line, open_reference
from leap.models.tokenizer import check_length, check_rows, hash_tokenizer

# Texts that are padded together and unpadded again.
TOGETHER = 256
# Files that change what transformers makes of a tokenizer.
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "sentence_bert_config.json")


class LibraryTokenizer:
    """A Transformer module's own preprocessing, without padding."""

    def __init__(self, transformer: Any, folder: Path) -> None:
        """Take the tokenizer of sentence-transformers' Transformer; the folder is for the hash and for messages.

        Raises:
            UserError: it has tokens, which may stand in other files than tokenizer.json, that the model has not.
        """
        self._transformer = transformer
        self._folder = folder
        rows = len(transformer.auto_model.get_input_embeddings().weight)
        check_rows(transformer.tokenizer.get_vocab(), rows, folder, COMPANIONS)

    @classmethod
    def open(cls, folder: Path) -> "LibraryTokenizer":
        """Open the tokenizer of a folder whose weights another encoder computes."""
        transformer = open_reference(folder)[0]
        transformer.auto_model.to("meta")  # the weights are not needed
        return cls(transformer, folder)

    @property
    def sha256(self) -> str:
        inside = ModelFolder.read(self._folder).transformer
        files = [(inside / name).read_text("utf-8") if (inside / name).is_file() else "" for name in COMPANIONS]
        return sha256_of_json([hash_tokenizer(self._folder), *files])

    @property
    def max_length(self) -> int:
        """Return the longest row in tokens, special tokens included; setting it cuts later texts there."""
        longest = self._transformer.max_seq_length
        return int(longest) if longest else 2**20

    @max_length.setter
    def max_length(self, length: int) -> None:
        check_length(length, None)
        self._transformer.max_seq_length = length

    def pieces(self) -> list[str]:
        ids = self._transformer.tokenizer.get_vocab()
        return sorted(ids, key=ids.__getitem__)

    def added_tokens(self) -> list[str]:
        """Return the tokens that are not cut further, special ones and others."""
        tokenizer = self._transformer.tokenizer
        return list(dict.fromkeys([*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens]))

    def backend(self) -> Tokenizer:
        """Return a copy of the tokenizer; UserError where it is written in Python, without a tokenizer.json."""
        fast = getattr(self._transformer.tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise UserError(
                f"{self._folder}: its tokenizer has no fast form to make a tokenizer.json of: choose another model"
            )
        return Tokenizer.from_str(fast.to_str())

    @property
    def vocabulary(self) -> int:
        return len(self._transformer.tokenizer)

    def __call__(self, sentences: Sequence[str]) -> list[list[int]]:
        texts = [text.encode("utf-8", "replace").decode() for text in sentences]
        rows: list[list[int]] = []
        for start in range(0, len(texts), TOGETHER):
            features = self._preprocess(texts[start : start + TOGETHER])
            if "token_type_ids" in features and features["token_type_ids"].any():
                raise UserError(
                    f"{self._folder}: its tokenizer numbers segments, which is not supported: choose another model"
                )
            rows += [
                ids[mask.bool()].tolist()
                for ids, mask in zip(features["input_ids"], features["attention_mask"], strict=True)
            ]
        return rows

    def _preprocess(self, texts: list[str]) -> dict[str, Any]:
        path = ModelFolder.read(self._folder).transformer / "tokenizer_config.json"
        try:
            features: dict[str, Any] = self._transformer.preprocess(texts)
        except Exception as error:  # noqa: BLE001 - the libraries raise whatever a tokenizer's settings make them
            raise UserError(
                f"{self._folder}: its tokenizer makes no batch of texts ({first_line(error)}): repair {path}, or "
                "choose another model"
            ) from None
        if "attention_mask" not in features:
            raise UserError(
                f"{path}: model_input_names lacks attention_mask, so a text's vector would depend on the padding "
                "of its batch: add it, or choose another model"
            )
        return features
