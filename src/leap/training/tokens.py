"""The training text as token ids, and the order in which batches are drawn from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.model.batches import Batch, grouped
from leap.model.tokenizer import SentenceTokenizer

Rows = np.ndarray[Any, np.dtype[np.int64]]

TOKENIZED_TOGETHER = 4096
# Batches are cut from this many at a time after sorting by length: alike lengths, still shuffled text.
POOLED_BATCHES = 50


class TokenizedText:
    """All sentences' token ids in one array, so that millions of them fit."""

    def __init__(self, sentences: Sequence[str], tokenizer: SentenceTokenizer) -> None:
        """Tokenizes the sentences."""
        parts, lengths = [], []
        for start in range(0, len(sentences), TOKENIZED_TOGETHER):
            rows = tokenizer(sentences[start : start + TOKENIZED_TOGETHER])
            lengths += [len(row) for row in rows]
            parts.append(np.fromiter((token for row in rows for token in row), dtype=np.int32))
        self.lengths: Rows = np.array(lengths, dtype=np.int64)
        self._ids = np.concatenate(parts)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return len(self.lengths)

    def counts(self, vocabulary: int) -> Tensor:
        """How often each token occurs, [vocabulary] int64."""
        return torch.from_numpy(np.bincount(self._ids, minlength=vocabulary))

    def batch(self, rows: Rows) -> Batch:
        """The sentences of `rows`, which are in ascending length."""
        ids = np.concatenate([self._ids[self._starts[row] : self._starts[row + 1]] for row in rows])
        positions = np.concatenate([np.arange(self.lengths[row]) for row in rows])
        return Batch(
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(positions),
            grouped(self.lengths[rows].tolist()),
        )


def epoch_batches(lengths: Rows, batch_size: int, seed: int, epoch: int) -> list[Rows]:
    """The rows of every batch of an epoch, each batch in ascending length.

    The order depends on nothing but the arguments, so a resumed run continues the same one. Rows that do not
    fill a last batch sit the epoch out; a text smaller than one batch is one batch.
    """
    generator = np.random.default_rng([seed, epoch])
    rows = generator.permutation(len(lengths))
    if len(rows) > batch_size:
        rows = rows[: len(rows) - len(rows) % batch_size]
    batches: list[Rows] = []
    for start in range(0, len(rows), batch_size * POOLED_BATCHES):
        pool = rows[start : start + batch_size * POOLED_BATCHES]
        ordered = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return [batches[index] for index in generator.permutation(len(batches))]
