"""Errors of a disk that is full, read-only or broken, as one message to the user."""

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from leap.core.errors import UserError

WAYS_OUT = {
    errno.ENOSPC: "free space, then run the same command again",
    errno.EDQUOT: "free space or have the quota raised, then run the same command again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), then run the same command again",
    errno.EROFS: "make it writable (mount), then run the same command again",
    errno.EACCES: "make it writable for this user (ls -ld shows the owner), then run the same command again",
    errno.EPERM: "make it writable for this user (ls -ld shows the owner), then run the same command again",
    errno.ENOTDIR: "a file lies where a folder is needed: move it away, then run the same command again",
    errno.EEXIST: "a file lies where a folder is needed: move it away, then run the same command again",
    errno.EIO: "look after the disk or the network mount, then run the same command again",
    errno.ENXIO: "look after the disk or the network mount, then run the same command again",
    errno.ESTALE: "mount the network folder again, then run the same command again",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then run the same command again",
}
# SQLite's primary result codes (sqlite.org/rescode.html): READONLY, IOERR, FULL.
_OF_SQLITE = {8: errno.EROFS, 10: errno.EIO, 13: errno.ENOSPC}
# How libraries in Rust name the error within their own.
_RUST = re.compile(r"\(os error (\d+)\)")
# How shutil.copytree names the errors that it collects. Others than these may be of a file that it reads.
_COPIED = re.compile(r"\[Errno (\d+)\]")
_OF_A_COPY = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class StorageError(UserError, OSError):
    """An output could not be written; what was there before still is."""


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn what the disk answers within the block into one StorageError that names the output."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, SafetensorError, sqlite3.Error) as error:
        named = getattr(error, "filename", None)
        if named and target.absolute().parent not in Path(os.fsdecode(named)).absolute().parents:
            raise  # of another file, which was read meanwhile
        message = storage_message(error, target)
        if message is None:
            raise
        raise StorageError(message) from error


def storage_message(error: BaseException, target: Path | None = None) -> str | None:
    """Say what is wrong with the disk, and the way out; null for an error that is not the disk's.

    `error` may also be what a library made of an OSError. `target` is the output that was being written; else the
    error's own file is named.
    """
    number = _number(error)
    if number not in WAYS_OUT:
        return None
    named = getattr(error, "filename", None)
    place = target or (Path(os.fsdecode(named)) if named else None)
    what = "a file" if place is None else str(place)
    doing = "written" if target else "read or written"
    return f"{what} cannot be {doing}: {os.strerror(number)}{_free(number, place)}; {WAYS_OUT[number]}"


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, sqlite3.Error):
        return _OF_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if isinstance(error, shutil.Error):
        return next((int(found) for found in _COPIED.findall(str(error)) if int(found) in _OF_A_COPY), None)
    match = _RUST.search(str(error))
    return int(match[1]) if match else None


def _free(number: int, place: Path | None) -> str:
    if number not in (errno.ENOSPC, errno.EDQUOT) or place is None:
        return ""
    folder = next(parent for parent in place.absolute().parents if parent.is_dir())
    return f" ({shutil.disk_usage(folder).free / 1e6:.0f} MB free for {folder})"
