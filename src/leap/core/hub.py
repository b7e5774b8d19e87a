"""Files of a repository on the Hugging Face Hub at a pinned commit."""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from leap.core.errors import UserError
from leap.core.files import sha256_of

log = logging.getLogger(__name__)

# Read when the hub's libraries are imported: no usage statistics leave this machine.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

TIMEOUT_SECONDS = 10


def fetch(
    repo: str,
    revision: str,
    patterns: Sequence[str],
    repo_type: Literal["model", "dataset"],
    required: Sequence[str],
) -> Path:
    """Return the folder with a repository's files that match the patterns, downloaded unless they are cached.

    A commit never changes, so a copy in the cache that is known to be whole is used without asking the hub: by the
    list of the repository's files that huggingface_hub keeps of its downloads. Another program may have fetched a
    part.

    Raises:
        UserError: the hub, the repository, the commit or the files cannot be had, or a file of the cache is
            damaged or may be one of a part; it fails at once.
    """
    from huggingface_hub import HfApi, get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, HFValidationError, LocalEntryNotFoundError

    what = f"{repo_type} {repo} at commit {revision}"

    def snapshot(cached: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                repo_type=repo_type,
                revision=revision,
                allow_patterns=list(patterns),
                local_files_only=cached,
                etag_timeout=TIMEOUT_SECONDS,
            )
        )

    folder = None
    try:
        folder = snapshot(cached=True)
        get_cached_repo_tree(repo, repo_type=repo_type, revision=revision)
        return _check_hashes(folder, patterns, what)
    except CachedRepoTreeNotFoundError:
        pass  # nobody knows whether the copy is whole
    except LocalEntryNotFoundError:
        pass  # not in the cache, or not all of it
    except HFValidationError:
        raise UserError(
            f"{what}: {repo!r} cannot be the name of a repository: correct `repo`, as in owner/name"
        ) from None
    try:
        with as_user_error(what):
            # Asked first because it fails at once; snapshot_download retries for 20 s without a network.
            HfApi().repo_info(repo, repo_type=repo_type, revision=revision, timeout=TIMEOUT_SECONDS)
            return _check_hashes(snapshot(cached=False), patterns, what)
    except UnreachableError:
        if folder is None or not all(find_matching(folder, pattern) for pattern in required):
            raise
        _check_unasked(folder, patterns, repo_type, what)
        return _check_hashes(folder, patterns, what)


class UnreachableError(UserError):
    """The hub does not answer, and what was asked for is not in the cache."""


@contextmanager
def as_user_error(what: str) -> Iterator[None]:
    """Turn what the hub answers within the block into one UserError that names what was asked for."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined] # httpx's or httpx2's

    try:
        yield
    except errors.GatedRepoError:
        raise UserError(f"{what}: accept its terms on its page of the hub, then `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{what}: the hub has no such repository, or it is private: check `repo`, or `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{what}: the repository has no such commit: check `revision`") from None
    except (ClientError, OSError, errors.HFValidationError) as error:
        raise UnreachableError(
            f"{what} is not in the local cache and the hub cannot be reached ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}): connect to the network (HF_HUB_OFFLINE must not be 1), or "
            "download the files elsewhere and name them with `kind: local`"
        ) from None


@dataclass(frozen=True)
class Repository:
    """A repository of the hub at a commit.

    files: its files with their sizes in bytes.
    license: as its card names it; null if it does not.
    """

    files: dict[str, int]
    license: str | None


def ask_hub(repo: str, revision: str, repo_type: Literal["model", "dataset"]) -> Repository:
    """Ask the hub for the files and the licence of a repository, without fetching anything else; or UserError."""
    from huggingface_hub import HfApi

    with as_user_error(f"{repo_type} {repo} at commit {revision}"):
        ask: Any = HfApi().model_info if repo_type == "model" else HfApi().dataset_info
        info = ask(repo, revision=revision, timeout=TIMEOUT_SECONDS, files_metadata=True)
    card = info.card_data.to_dict() if info.card_data else {}
    tagged = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    named = card.get("license") or tagged
    text = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
    return Repository({file.rfilename: file.size or 0 for file in info.siblings or ()}, text or None)


def _check_unasked(folder: Path, patterns: Sequence[str], repo_type: str, what: str) -> None:
    """Refuse a copy of data that nobody can vouch for, with the hub out of reach; of a model, warn."""
    if all((folder / name).is_file() for name in patterns):  # a name with a wildcard is no file
        return
    if repo_type == "dataset":
        raise UserError(
            f"{what} may be downloaded in part only: nobody knows what else belongs to {folder}, and the hub "
            "cannot be reached: connect to the network, or name each file without a wildcard"
        )
    log.warning("%s: the hub cannot be asked whether the copy in %s has all its files", what, folder)


def _check_hashes(folder: Path, patterns: Sequence[str], what: str) -> Path:
    """Compare files with the hash that the cache names them by: sha256 of large ones, Git's of others."""
    for file in sorted({file for pattern in patterns for file in find_matching(folder, pattern)}):
        name = file.resolve().name
        length = len(name) if re.fullmatch("[0-9a-f]+", name) else 0
        if file.is_symlink() and length in _HASHES and _HASHES[length](file) != name:
            raise UserError(
                f"{what}: {file.resolve()} is damaged, its content is not what its name says: delete it and "
                "run again"
            )
    return folder


def _git_blob(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


# By the length of a name: see huggingface.co, "Understand caching", blobs.
_HASHES = {64: sha256_of, 40: _git_blob}


def find_matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files under `folder` whose relative path matches `pattern` as the hub matches it, in order."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if fnmatch(file.relative_to(folder).as_posix(), pattern))
