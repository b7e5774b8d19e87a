"""Folders that are really full, really read-only, in a command of their own.

The command runs in a mount namespace (`unshare`), so that what it finds mounted nobody else sees, and nothing
is left to unmount. Root may do that, and a user where the kernel lets users make namespaces.
"""

import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@cache
def _allowed() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def needs_mounts() -> None:
    """Skips a test where this user may not mount in a namespace of its own."""
    if not _allowed():
        pytest.skip("this machine lets this user mount nothing, not even in a namespace: unshare --user --mount")


def full(folder: Path, size: str, *command: str) -> list[str]:
    """The command, with an empty disk of `size` bytes mounted on the folder."""
    return _in_namespace(f"mount -t tmpfs -o size={size} none {shlex.quote(str(folder))}", command)


def read_only(folder: Path, *command: str) -> list[str]:
    """The command, with the folder mounted read-only, its content in place."""
    place = shlex.quote(str(folder))
    return _in_namespace(f"mount --bind {place} {place} && mount -o remount,ro,bind {place}", command)


def small_files(blocks: int, *command: str) -> list[str]:
    """The command, which may write no file larger than so many kB."""
    return ["bash", "-c", f"ulimit -f {blocks} && exec {shlex.join(command)}"]


def _in_namespace(prepare: str, command: tuple[str, ...]) -> list[str]:
    return [*NAMESPACE, "sh", "-c", f"{prepare} && exec {shlex.join(command)}"]
