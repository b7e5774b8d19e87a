"""Results by length: texts grouped by their number of tokens."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# A bin of fewer texts says nothing about its length.
ENOUGH = 10


def length_bins(tokens: Integers, edges: Sequence[int]) -> Iterator[tuple[list[int | None], Mask]]:
    """Yield the bins that hold enough texts, in ascending length.

    Args:
        tokens: [N], special tokens included, as the model sees them.
        edges: the longest length of each bin but the last, ascending: [8, 16] makes 1-8, 9-16 and 17 upwards.

    Yields:
        The shortest and the longest length of a bin (null: no bound), and which texts lie in it, [N] bool.
    """
    for low, high in pairwise([0, *edges, None]):
        inside = tokens > (low or 0)
        if high is not None:
            inside &= tokens <= high
        if inside.sum() >= ENOUGH:
            yield [(low or 0) + 1, high], inside
