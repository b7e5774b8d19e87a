"""Passages: sentences of one source joined, for students that will meet longer texts than the corpus has.

A corpus of single sentences leaves a student untrained on whatever its collections hold beyond some 40
tokens. The joined sentences need not belong together: the teacher says what their vector is.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator

from leap.core.settings.data import PassageSettings

_SENTENCE_ENDS = (".", "!", "?", "…")


def add_passages(
    rows: Iterable[tuple[str, str]], settings: PassageSettings, seed: int, counts: dict[str, dict[str, int]]
) -> Iterator[tuple[str, str]]:
    """Yield rows, (sentence, source) in their seeded order, and passages of those before; count `passages`."""
    least, most = settings.sentences
    generator = random.Random(seed)
    before: dict[str, deque[str]] = {}
    for text, source in rows:
        yield text, source
        recent = before.setdefault(source, deque(maxlen=most))
        recent.append(text if text.endswith(_SENTENCE_ENDS) else f"{text}.")
        drawn, size = generator.random(), generator.randint(least, most)
        if drawn < settings.share and len(recent) >= size:
            counts[source]["passages"] += 1
            yield " ".join(list(recent)[-size:]), source
