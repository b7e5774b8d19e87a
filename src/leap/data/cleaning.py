"""Clean text and its fingerprint: what makes two texts the same, in training and in evaluation."""

import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

from leap.data.prose import sentences

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INVISIBLE = re.compile("[\ufeff\u200b\u2060\ud800-\udfff]")  # marks, and halves of surrogate pairs
_ENDS = re.compile(r"^[\W_]+|[\W_]+$")


def clean(text: str) -> str:
    """Text in Unicode NFC with its whitespace folded, without control and invisible characters."""
    text = _INVISIBLE.sub("", _CONTROLS.sub(" ", text))
    return " ".join(unicodedata.normalize("NFC", text).split())


def fingerprint(text: str, seed: int = 0) -> int:
    """64 bits for a clean text: equal for texts that differ in case and in punctuation at the ends only."""
    folded = _ENDS.sub("", text.casefold()) or text
    return int.from_bytes(blake2b(folded.encode(), digest_size=8, key=str(seed).encode()).digest())


def evaluation_prints(texts: Iterable[str]) -> set[int]:
    """The fingerprints of evaluation texts: of each whole text and of each of its sentences."""
    return {fingerprint(part) for text in texts for whole in (clean(text),) for part in (whole, *sentences(whole))}
