"""Puts right what a kill or a power cut left of DVC's own files, so that `dvc repro` goes on.

python scripts/mend.py          # or: make mend; `make demo` begins with it

DVC writes dvc.lock and .dvc/tmp/rwlock in place. Killed in that moment it leaves half a file and refuses to
run: "'./dvc.lock' is invalid" or "validation failed", "Unable to read RWLock-file". What is damaged goes,
what can be read stays as it is. Nothing is lost: DVC's run cache has the results of the stages by their
inputs; trained students and the teacher's cache know themselves what they were made from.
"""

import json
import logging
import sys
from pathlib import Path

from dvc.dvcfile import Lockfile
from dvc.exceptions import DvcException
from dvc.lock import LockError, make_lock
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, SCHEMA
from dvc.utils.serialize import EncodingError
from dvc.utils.strictyaml import YAMLSyntaxError, YAMLValidationError
from voluptuous import Invalid

LOCKFILES = ("dvc.lock", "studies/dvc.lock")

log = logging.getLogger("mend")


def mend(project: Path) -> list[Path]:
    """Removes DVC's damaged files from a project; returns which.

    Raises:
        LockError: a DVC is at work here.
    """
    removed = []
    with Repo(str(project)) as repo:
        assert repo.tmp_dir is not None
        own = Path(repo.tmp_dir)
        with repo.lock:
            for name in LOCKFILES:
                path = project / name
                if path.exists() and not _is_lockfile(repo, path):
                    path.unlink()
                    removed.append(path)
        with make_lock(str(own / RWLOCK_LOCK), tmp_dir=str(own)):
            if (own / RWLOCK_FILE).exists() and not _is_rwlock(own / RWLOCK_FILE):
                (own / RWLOCK_FILE).unlink()
                removed.append(own / RWLOCK_FILE)
    return removed


def _is_lockfile(repo: Repo, path: Path) -> bool:
    try:
        Lockfile(repo, str(path)).load()
    except (YAMLSyntaxError, YAMLValidationError, EncodingError):
        return False
    return True


def _is_rwlock(path: Path) -> bool:
    try:
        SCHEMA(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, Invalid):
        return False
    return True


def main() -> None:
    """Mends the project that this script belongs to."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        removed = mend(Path.cwd())
    except LockError:
        sys.exit("error: another DVC is at work in this project: wait for it, or stop it")
    except DvcException as error:
        sys.exit(f"error: {error}: run this in the project's folder")
    for path in removed:
        log.info("%s was damaged by a kill and is removed: `dvc repro` restores what was done", path)


if __name__ == "__main__":
    main()
