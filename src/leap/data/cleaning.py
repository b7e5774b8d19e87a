"""Clean text, its sentences and its fingerprint: which texts are the same, in training and in evaluation."""

import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate
from zlib import crc32

# The fewest letters by which an evaluation text is recognised in a longer text: as a sentence, as a run of words.
SENTENCE = 10
RUN = 24

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Marks without width, among them the soft hyphen, and halves of surrogate pairs.
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff\ud800-\udfff]")
_ABBREVIATIONS = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|fig|figs|eq|eqs|no|nos|sec|ch|vol|pp|approx|resp|incl|dr|mr|mrs|st|jr|ref"
    r"|refs|def|ed|eds|w\.r\.t|a\.k\.a|p|dept|prof|univ)|\b[A-Z])\.$",
    re.IGNORECASE,
)
_BOUNDARY = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+(?=[\"'“‘«(\[¿¡]?(\w))|(?<=[。！？])(?=(\w))")  # noqa: RUF001
# Every place at which a sentence may end, also before a lower-case letter and after an abbreviation.
_ANY_END = re.compile(r"[.!?…;:\"'”’»)\-–—|/•]\s+|[。！？\r\n\t]")  # noqa: RUF001


def clean(text: str) -> str:
    """Return text in Unicode NFC with its whitespace folded, without control and invisible characters."""
    text = _INVISIBLE.sub("", _CONTROLS.sub(" ", text))
    return " ".join(unicodedata.normalize("NFC", text).split())


def split_sentences(text: str) -> list[str]:
    """Split after . ! ? or … unless a lower-case letter follows or an abbreviation ends there."""
    parts: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        head = text[start : boundary.start()]
        if (boundary[1] or boundary[2]).islower() or _ABBREVIATIONS.search(head):
            continue
        parts.append(text[start : boundary.end()].strip())
        start = boundary.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


class _Letters(dict[int, str | None]):
    """A table for `str.translate`, filled as characters are met: letters, their marks, digits and spaces stay."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        stays = unicodedata.category(character)[0] in "LMN" and not 0xFE00 <= code <= 0xFE0F
        self[code] = character if stays else " " if character.isspace() else None
        return self[code]


_LETTERS = _Letters()


def folded_words(text: str) -> list[str]:
    """Return the words of a text with their letters and digits only, in lower case and Unicode NFKC."""
    folded = text.translate(_LETTERS)
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded).casefold().translate(_LETTERS)
        folded = unicodedata.normalize("NFKC", folded)
    return folded.lower().split()


def fingerprint(text: str, seed: int = 0) -> int:
    """Hash the letters and digits of a text to 64 bits.

    Texts that differ in case, punctuation, quotes, hyphens, dashes, spaces or ligatures only are the same. A
    text without letters and digits stands for itself.
    """
    return _hash("".join(folded_words(text)) or text, seed)


def _hash(text: str, seed: int = 0) -> int:
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8, key=str(seed).encode()).digest())


class EvaluationTexts:
    """The texts that are evaluated on, to be recognised in training text; as hashes, some 400 bytes each."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Take in evaluation texts: each whole, and each of its sentences."""
        self._whole: set[int] = set()
        # The checksum of the first RUN letters of a longer text to the lengths of those that begin so. Not
        # Python's hash(), which is another one in every process of a cluster.
        self._lengths: dict[int, set[int]] = {}
        for text in texts:
            for part in {text, *split_sentences(clean(text))}:
                folded = "".join(folded_words(part))
                if folded or part:
                    self._whole.add(_hash(folded or part))
                if len(folded) >= RUN:
                    self._lengths.setdefault(crc32(folded[:RUN].encode()), set()).add(len(folded))

    def occur_in(self, text: str) -> bool:
        """Return whether a text is one of them, or holds one as a sentence or as a run of whole words.

        A sentence must have at least `SENTENCE` letters, a run at least `RUN`: shorter ones are common phrases.
        """
        words = folded_words(text)
        folded = "".join(words)
        if _hash(folded or text) in self._whole:
            return True
        start = 0
        for word in words:
            run = crc32(folded[start : start + RUN].encode())
            if run in self._lengths:
                ends = {start + length for length in self._lengths[run]} & set(accumulate(map(len, words)))
                if any(_hash(folded[start:end]) in self._whole for end in ends):
                    return True
            start += len(word)
        parts = _ANY_END.split(text)
        if len(parts) > 1:
            parts += split_sentences(clean(text))
        return any(self._is_sentence(part) for part in parts)

    def _is_sentence(self, part: str) -> bool:
        folded = "".join(folded_words(part))
        return len(folded) >= SENTENCE and _hash(folded) in self._whole
