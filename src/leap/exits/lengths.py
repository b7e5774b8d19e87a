"""Where sentences leave by their length: inputs longer than the training's leave differently."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Upper ends in tokens, special tokens included; the last bin is open.
BINS = (8, 16, 32, 64, 128, 256)


def exits_by_length(
    exits: Tensor, tokens: Tensor, depth: int, bins: Sequence[int] = BINS
) -> list[dict[str, Any]]:
    """Exit layers by token count.

    Args:
        exits: [N] int64, exit layers counted from 1.
        tokens: [N] int64, tokens of each sentence.
        depth: L.
        bins: ascending upper ends, inclusive; what is longer is one more bin.

    Returns:
        For each bin that has sentences: from and to (tokens; to is null in the open one), n, expected_layers,
        rate (share that leaves before L), and layers (count by exit layer).
    """
    ends = torch.tensor(list(bins))
    numbers = torch.bucketize(tokens, ends)  # ends[i - 1] < tokens <= ends[i]
    report = []
    for number in sorted(set(numbers.tolist())):
        inside = exits[numbers == number]
        report.append(
            {
                "from": bins[number - 1] + 1 if number else 1,
                "to": bins[number] if number < len(bins) else None,
                "n": len(inside),
                "expected_layers": inside.double().mean().item(),
                "rate": (inside < depth).double().mean().item(),
                "layers": {str(layer): count for layer, count in sorted(Counter(inside.tolist()).items())},
            }
        )
    return report
