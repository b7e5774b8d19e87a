"""The extracted training text."""

from pathlib import Path

from leap.data.extracted import read_columns


def read_sentences(path: Path) -> list[str]:
    """The sentences in their order.

    Raises:
        UserError: the file is missing or damaged.
    """
    sentences: list[str] = read_columns(path, {"sentence": "string"})["sentence"].to_pylist()
    return sentences
