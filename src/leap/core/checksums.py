"""SHA256SUMS: the hashes of a folder's files, in coreutils' form, so that a changed byte is noticed.

`sha256sum -c SHA256SUMS` in the folder checks the same by hand.
"""

from collections.abc import Collection
from pathlib import Path

from leap.core.errors import UserError
from leap.core.files import hashes_of, sha256_of, whole_file

FILE = "SHA256SUMS"


def write_sums(folder: Path, leaving_out: Collection[str] = ()) -> None:
    """Write the hashes of all files of a folder, except names that may change or come later."""
    lines = [f"{digest}  {name}\n" for name, digest in hashes_of(folder, (FILE, *leaving_out)).items()]
    with whole_file(folder / FILE) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path, way_out: str) -> None:
    """Compare every file that SHA256SUMS names; a folder without one is taken as it is.

    UserError names all files that are missing or changed, and the way out.
    """
    path = folder / FILE
    if not path.is_file():
        return
    faults = [fault for line in _lines(path, way_out) if (fault := _fault(folder, *line))]
    if faults:
        raise UserError(f"{folder} is not what was written there: {'; '.join(faults)} ({path}): {way_out}")


def _lines(path: Path, way_out: str) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [line.split("  ", 1) for line in lines]
        named = [(digest, name) for digest, name in pairs]
    except ValueError:
        raise UserError(f"{path} is damaged: {way_out}") from None
    if not named:
        raise UserError(f"{path} is empty: {way_out}")
    return named


def _fault(folder: Path, digest: str, name: str) -> str | None:
    file = folder / name
    try:
        digest_now = sha256_of(file)
    except (OSError, ValueError):  # ValueError: a damaged name may hold NUL
        return f"{name} is missing"
    return None if digest_now == digest else f"{name} has another sha256"
