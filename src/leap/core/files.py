"""Outputs that appear whole or not at all, and hashes of files."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.project import stage_that_writes
from leap.core.storage import writing
from leap.core.unfinished import part_of

CHANGED = "was edited after it was written: its checksum does not match its content"


def must_be_new(target: Path, mark: str | None = None) -> None:
    """Check, before any work, that writing `target` loses nothing of the user's, else raise UserError.

    `mark` is what the same command's files hold near their beginning; such a file may be replaced.
    """
    stage = stage_that_writes(target)
    if stage is not None:
        raise UserError(
            f"{target} is an output of DVC's stage {stage}, which writes it again: name another target"
        )
    if target.is_file() and mark is not None and has_mark(target, mark):
        return
    if target.exists() or target.is_symlink():
        kind = "folder" if target.is_dir() else "file"
        raise UserError(f"{target} exists, a {kind} that stays as it is: name another target, or move it away")
    parent = next(place for place in target.absolute().parents if place.exists())
    if not parent.is_dir():
        raise UserError(f"{target} cannot be written: {parent} is a file; name another target")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{target} cannot be written: {parent} is not writable for this user; name another target")


def has_mark(file: Path, mark: str) -> bool:
    with file.open("rb") as opened:
        return mark.encode() in opened.read(4096)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `target` when the block ends without an error.

    A kill leaves the old folder, the new one or, for a moment between them, none; never a part of one.

    Raises:
        StorageError: the disk is full, read-only or broken, or the folder may not be written.
    """
    with writing(target), part_of(target) as part:
        part.mkdir()
        yield part
        _open_to_readers(part)
        _replace_folder(target, part)


def _replace_folder(target: Path, part: Path) -> None:
    """Give a folder another's place; of processes that do so at once, the last one's stays."""
    for number in count():
        with suppress(FileNotFoundError):  # another process moved it away meanwhile
            if target.is_dir():
                target.rename(part.with_name(f".replaced-{number}"))
        try:
            part.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another process's folder came there first
        else:
            return


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a path that is renamed to `target` when the block ends without an error; raises as `whole_folder`."""
    with writing(target), part_of(target) as part:
        yield part
        _open_to_readers(part)
        part.replace(target)


def _open_to_readers(part: Path) -> None:
    """Give files the mode that the user's umask says: safetensors, for one, writes for the owner only."""
    probe = part.with_name(".mode")
    probe.touch(0o666)
    mode = stat.S_IMODE(probe.stat().st_mode)
    for file in part.rglob("*") if part.is_dir() else [part]:
        if file.is_file() and not file.is_symlink():
            with suppress(PermissionError):  # some network mounts have no modes
                file.chmod(mode | (file.stat().st_mode & 0o100))


def write_json(target: Path, content: Any) -> None:
    """Write JSON whole or not at all; keys keep their order, NaN and infinity are refused."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_with_checksum(target: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with `checksum`, the sha256 of all else: a later change shows when it is read."""
    plain = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: keys are text
    write_json(target, {**plain, "checksum": json_checksum(plain)})


def read_json(path: Path, made_by: str, check: bool = True) -> Any:
    """Read JSON that the command `made_by`, the way out in errors, writes; `check` compares its checksum.

    Raises:
        UserError: the file is missing, is not JSON, or was changed after it was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `{made_by}` writes it") from None
    except (ValueError, RecursionError) as error:  # not JSON, or not even UTF-8
        raise UserError(f"{path} is not JSON ({error}): delete it and run `{made_by}` again") from None
    if check and isinstance(content, dict) and has_wrong_checksum(content):
        raise UserError(f"{path} {CHANGED}, by hand or by damage: delete it and run `{made_by}` again")
    return content


def json_checksum(content: dict[str, Any]) -> str:
    """Return the sha256 of a JSON object's content, the checksum itself aside."""
    return sha256_of_json({key: value for key, value in content.items() if key != "checksum"})


def has_wrong_checksum(content: dict[str, Any]) -> bool:
    """Tell a JSON object whose checksum does not match the rest of it, also under a damaged name."""
    if "checksum" in content:
        return bool(content["checksum"] != json_checksum(content))
    return any(
        value == sha256_of_json({other: content[other] for other in content if other != name})
        for name, value in content.items()
        if isinstance(value, str) and len(value) == 64
    )


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_of(folder: Path, leaving_out: Collection[str] = ()) -> dict[str, str]:
    """Return the sha256 of every file below a folder by its path in it, but of those with names left out."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in leaving_out)
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in sorted(files)}


def sha256_of_json(content: Any) -> str:
    """Return the sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256_of_sentences(sentences: Sequence[str]) -> str:
    """Return the sha256 of the sentences and their order; no two lists share the bytes that are hashed."""
    digest = hashlib.sha256()
    for sentence in sentences:
        data = sentence.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
