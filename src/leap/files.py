"""Outputs that appear whole or not at all, and hashes of files."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leap.errors import UserError


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target` that replaces it when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        beside.chmod(0o755)  # mkdtemp makes it private; an output is as readable as any other file
        yield beside
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yields a path beside `target` that is renamed to it when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield beside
        beside.rename(target)
    finally:
        beside.unlink(missing_ok=True)


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
