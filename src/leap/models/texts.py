"""The texts that `encode` takes, checked, and cut into batches without holding the tokens of all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from leap.core.progress import bar
from leap.models.batches import Batch, by_length, without_tokens

Tokenizer = Callable[[Sequence[str]], list[list[int]]]

# Tokenised and sorted by length together. Characters count too: tokens that a cut drops are held meanwhile.
CHUNK_SENTENCES = 8192
CHUNK_CHARACTERS = 2**22


def checked_texts(sentences: str | Iterable[str]) -> list[str]:
    """Return one sentence or several as a list: of a list, tuple, array, Series, or any other iterable of strings.

    Raises:
        TypeError: it holds something that is no string.
    """
    if isinstance(sentences, str):
        return [sentences]
    if isinstance(sentences, bytes | Mapping) or not isinstance(sentences, Iterable):
        raise TypeError(f"sentences must be a string or several strings, not {type(sentences).__name__}")
    texts = list(sentences)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"sentences[{number}] is {text!r}, a {type(text).__name__}: expected a string")
    return texts


def text_batches(
    tokenizer: Tokenizer, texts: Sequence[str], prompt: str | None, batch_size: int, show: bool
) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of sentences alike in length; memory does not grow with their number.

    Yields:
        The sentences' indices in the batch's order, and the batch on the CPU; rows without tokens are a batch
        of their own.
    """
    with bar(total=len(texts), unit="sentence", disable=not show) as progress:
        for start, stop in chunks(texts):
            token_ids = tokenizer([f"{prompt or ''}{text}" for text in texts[start:stop]])
            filled = [row for row, ids in enumerate(token_ids) if ids]
            for rows, batch in by_length([token_ids[row] for row in filled], batch_size):
                yield [start + filled[row] for row in rows], batch
                progress.update(len(rows))
            # Without special tokens an empty text has no tokens.
            empty = [start + row for row, ids in enumerate(token_ids) if not ids]
            if empty:
                yield empty, without_tokens(len(empty))
                progress.update(len(empty))


def chunks(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where to cut: at most CHUNK_SENTENCES, and no more after CHUNK_CHARACTERS are reached."""
    start = characters = 0
    for number, text in enumerate(texts):
        if number - start == CHUNK_SENTENCES or characters >= CHUNK_CHARACTERS:
            yield start, number
            start, characters = number, 0
        characters += len(text)
    if texts:
        yield start, len(texts)
