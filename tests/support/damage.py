"""Files damaged in many ways, one at a time, and what a reader makes of each."""

import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from leap.core.errors import UserError


def damaged(content: bytes, times: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """The content with one bit flipped or one byte replaced at random places, and cut at random lengths."""
    generator = random.Random(seed)
    for _ in range(times):
        changed, place = bytearray(content), generator.randrange(len(content))
        changed[place] ^= 1 << generator.randrange(8)
        yield f"bit flipped in byte {place}", bytes(changed)
        changed = bytearray(content)
        changed[place] = (content[place] + generator.randrange(1, 256)) % 256
        yield f"byte {place} replaced", bytes(changed)
    for length in sorted({0, 1, len(content) - 1, *(generator.randrange(len(content)) for _ in range(times))}):
        yield f"cut to {length} bytes", content[:length]


def survives(
    path: Path, read: Callable[[], Any], named: str | None = None, times: int = 20, same: Any = None
) -> int:
    """Damages a file in many ways: `read` must give the right result each time, or name the file.

    Args:
        path: the file, which is whole again afterwards.
        read: gives something that can be compared with ==.
        named: what a refusal must name; the file's name if None.
        times: of each kind of damage.
        same: compares results; == if None.

    Returns:
        How often it was refused.
    """
    content, right = path.read_bytes(), read()
    refused = 0
    for how, changed in damaged(content, times):
        path.write_bytes(changed)
        refusal = ""
        try:
            result = read()
        except UserError as error:
            refusal = str(error)
            refused += 1
        finally:
            path.write_bytes(content)
        if refusal:
            assert (named or path.name) in refusal, (path.name, how, refusal)
        else:
            assert (same or operator.eq)(result, right), (path.name, how)
    assert read() == right if same is None else same(read(), right)
    return refused
