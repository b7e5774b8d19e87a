"""Where an output is written before it takes its place, and the removal of what killed processes left there.

The name of such a folder opens with a dot and ends in `.part`. Its writer holds a lock in it, which the
system releases when the process ends, however it ends: so a part without a holder is nobody's.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leap.core.errors import UserError
from leap.core.storage import writing

ENDING = ".part"
LOCK = ".lock"


@contextmanager
def part_of(target: Path) -> Iterator[Path]:
    """Yield a path with the target's name in a new folder next to it, which is removed when the block ends.

    What killed processes left in the same place is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_left_parts(target.parent)
    folder, lock = _new_part(target)
    try:
        yield folder / target.name
    finally:
        _remove(folder, lock)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is missing, for one process at a time.

    Raises:
        UserError: another process holds it.
        StorageError: the disk is full or read-only, or the folder may not be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    lock = _lock_folder(folder)
    if lock is None:
        raise UserError(f"another process is at work in {folder}: wait for its end, or write elsewhere")
    try:
        yield
    finally:
        os.close(lock)


def remove_left_parts(place: Path) -> list[Path]:
    """Remove the parts directly in `place` that no living process holds; return which."""
    removed = []
    for folder in place.glob(f".*{ENDING}"):
        if not _is_ours(folder):
            continue
        lock = _lock_folder(folder)
        if lock is None:
            continue
        _remove(folder, lock)
        removed.append(folder)
    return removed


def _is_ours(folder: Path) -> bool:
    """A part holds a lock from its first moment on; only a kill before that leaves it empty."""
    try:
        return folder.is_dir() and ((folder / LOCK).is_file() or not any(folder.iterdir()))
    except (FileNotFoundError, PermissionError):
        return False  # its writer ended meanwhile, or it is another user's


def _remove(folder: Path, lock: int) -> None:
    """Remove a part, its lock last: one that a kill leaves half removed is still known by it."""
    try:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _new_part(target: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=ENDING, dir=target.parent))
        lock = _lock_folder(folder)
        if lock is not None:
            return folder, lock
        # Another process took it for a left one in the moment before it was locked.


def _lock_folder(folder: Path) -> int | None:
    """An open file that holds the folder's lock; none if another process holds it or removed the folder."""
    import fcntl  # here, for Windows has none and needs none to read

    try:
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / LOCK).exists():
            return lock
    os.close(lock)
    return None
