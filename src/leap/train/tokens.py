"""The training text as token ids, and the order in which batches are drawn from it."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.core.files import sha256_of_json, sha256_of_sentences, whole_file
from leap.core.tensor_files import DamagedError, load_with_checksum, save_with_checksum
from leap.models.batches import Batch, grouped
from leap.models.library_tokenizer import LibraryTokenizer
from leap.models.tokenizer import SentenceTokenizer

log = logging.getLogger(__name__)

Rows = np.ndarray[Any, np.dtype[np.int64]]
Ids = np.ndarray[Any, np.dtype[np.int32]]

TOKENIZED_TOGETHER = 4096
COUNTED_TOGETHER = 2**24
# Batches are cut from this many at a time after sorting by length: alike lengths, still shuffled text.
POOLED_BATCHES = 50


class TokenizedText:
    """All sentences' token ids in one array, so that millions of them fit."""

    def __init__(self, ids: Ids, lengths: Rows) -> None:
        self.lengths = lengths
        self._ids = ids
        self._starts = np.concatenate([[0], np.cumsum(lengths)])

    @classmethod
    def of(cls, sentences: Sequence[str], tokenizer: SentenceTokenizer | LibraryTokenizer) -> "TokenizedText":
        parts, lengths = [], []
        for start in range(0, len(sentences), TOKENIZED_TOGETHER):
            rows = tokenizer(sentences[start : start + TOKENIZED_TOGETHER])
            lengths += [len(row) for row in rows]
            parts.append(np.fromiter((token for row in rows for token in row), dtype=np.int32))
        return cls(np.concatenate(parts), np.array(lengths, dtype=np.int64))

    @classmethod
    def cached(
        cls, folder: Path, sentences: Sequence[str], tokenizer: SentenceTokenizer | LibraryTokenizer
    ) -> "TokenizedText":
        """The same from `folder`, where every variant finds what the first one tokenized.

        A million sentences take a minute. Files are named by their content, so none is ever out of date.
        """
        key = sha256_of_json([sha256_of_sentences(sentences), tokenizer.sha256, tokenizer.max_length])
        path = folder / f"{key}.safetensors"
        try:
            stored, _ = load_with_checksum(path)
        except (OSError, DamagedError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s is damaged (%s): the text is tokenized again", path, error)
            text = cls.of(sentences, tokenizer)
            with whole_file(path) as temporary:
                save_with_checksum(
                    {"ids": torch.from_numpy(text._ids), "lengths": torch.from_numpy(text.lengths)}, temporary
                )
            return text
        return cls(stored["ids"].numpy(), stored["lengths"].numpy())

    def __len__(self) -> int:
        return len(self.lengths)

    def counts(self, vocabulary: int) -> Tensor:
        """Count how often each token occurs, [vocabulary] int64."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for start in range(0, len(self._ids), COUNTED_TOGETHER):  # bincount makes an int64 copy
            counts += np.bincount(self._ids[start : start + COUNTED_TOGETHER], minlength=vocabulary)
        return torch.from_numpy(counts)

    def batch(self, rows: Rows) -> Batch:
        """Return the sentences of `rows`, which are in ascending length."""
        ids, positions = self._flat(rows)
        return Batch(ids, positions, grouped(self.lengths[rows].tolist()))

    def packed(self, rows: Rows, tokens: int, longest: int) -> Batch:
        """Return the sentences of `rows` in a batch of fixed size, for a GPU; tokens after the last row are idle.

        Args:
            rows: in any order.
            tokens: the size, at least the rows' sum.
            longest: an upper bound of the lengths, which is the batch's whatever its rows.
        """
        ids, positions = (torch.nn.functional.pad(part, (0, tokens - len(part))) for part in self._flat(rows))
        ends = np.cumsum(self.lengths[rows])
        offsets = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
        return Batch(ids, positions, (), offsets, longest)

    def largest(self, batches: Iterable[Rows]) -> int:
        """Return the most tokens that any of the batches has, in whole 128s: the size for `packed`."""
        return -(-max(int(self.lengths[rows].sum()) for rows in batches) // 128) * 128

    def _flat(self, rows: Rows) -> tuple[Tensor, Tensor]:
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        ids = self._ids[np.repeat(self._starts[rows], lengths) + positions]
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(positions)


def epoch_batches(lengths: Rows, batch_size: int, seed: int, epoch: int, mixed: bool = False) -> list[Rows]:
    """Return the rows of every batch of an epoch, each batch in ascending length.

    The order depends on nothing but the arguments, so a resumed run continues the same one. Rows that do not
    fill a last batch sit the epoch out; a text smaller than one batch is one batch.

    Args:
        lengths: of the sentences, in tokens.
        mixed: every batch has sentences of all lengths, one from each of `batch_size` strata, and so nearly
            the same number of tokens, as packed rows on a GPU want it. Else lengths within a batch are
            alike, which saves a CPU's launches.
    """
    generator = np.random.default_rng([seed, epoch])
    rows = generator.permutation(len(lengths))
    if len(rows) > batch_size:
        rows = rows[: len(rows) - len(rows) % batch_size]
    batches = (
        _mixed_batches(rows, lengths, batch_size, generator)
        if mixed
        else _alike_batches(rows, lengths, batch_size)
    )
    return [batches[index] for index in generator.permutation(len(batches))]


def _alike_batches(rows: Rows, lengths: Rows, batch_size: int) -> list[Rows]:
    batches: list[Rows] = []
    for start in range(0, len(rows), batch_size * POOLED_BATCHES):
        pool = rows[start : start + batch_size * POOLED_BATCHES]
        ordered = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return batches


def _mixed_batches(rows: Rows, lengths: Rows, batch_size: int, generator: np.random.Generator) -> list[Rows]:
    ordered = rows[np.argsort(lengths[rows], kind="stable")]
    strata = ordered.reshape(min(batch_size, len(rows)), -1)
    return list(generator.permuted(strata, axis=1).T.copy())
