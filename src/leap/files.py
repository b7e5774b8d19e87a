"""Outputs that appear whole or not at all, and hashes of files."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leap.errors import UserError
from leap.storage import writing
from leap.unfinished import part_of


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `target` when the block ends without an error.

    A kill leaves the old folder, the new one or, for a moment between them, none; never a part of one.

    Raises:
        StorageError: the disk is full, read-only or broken, or the folder may not be written.
    """
    with writing(target), part_of(target) as part:
        part.mkdir()
        yield part
        if target.is_dir():
            target.rename(part.with_name(".replaced"))
        part.rename(target)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yields a path that is renamed to `target` when the block ends without an error.

    Raises:
        StorageError: the disk is full, read-only or broken, or the folder may not be written.
    """
    with writing(target), part_of(target) as part:
        yield part
        part.replace(target)


def write_json(target: Path, content: Any) -> None:
    """Writes JSON whole or not at all; keys keep their order, NaN and infinity are refused."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with whole_file(target) as beside:
        beside.write_text(text, encoding="utf-8")


def read_json(path: Path, made_by: str) -> Any:
    """Reads JSON that the command `made_by` writes.

    Raises:
        UserError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `{made_by}` writes it") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON ({error}): delete it and run `{made_by}` again") from None


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(content: Any) -> str:
    """The sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of_sentences(sentences: Sequence[str]) -> str:
    """The hash of the sentences and their order."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(sentence.encode("utf-8", "replace") + b"\n")
    return digest.hexdigest()
