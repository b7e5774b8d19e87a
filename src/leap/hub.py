"""Files of a repository on the Hugging Face Hub at a pinned commit."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from leap.errors import UserError

TIMEOUT_SECONDS = 10


def fetch(
    repo: str,
    revision: str,
    patterns: Sequence[str],
    repo_type: Literal["model", "dataset"],
    required: Sequence[str],
) -> Path:
    """The folder with a repository's files that match the patterns, downloaded unless they are cached.

    A commit never changes, so a copy in the cache that has a file for each of `required` is used without
    asking the hub.

    Raises:
        UserError: the hub, the repository, the commit or the files cannot be had; it fails at once.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined] # httpx's or httpx2's

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

    try:
        folder = snapshot(cached=True)
        if all(matching(folder, pattern) for pattern in required):
            return folder
    except LocalEntryNotFoundError:
        pass  # not in the cache, or only in part
    except HFValidationError:
        raise UserError(f"{what}: {repo!r} cannot be the name of a repository (owner/name)") from None
    try:
        # Asked first because it fails at once; snapshot_download retries for 20 s without a network.
        HfApi().repo_info(repo, repo_type=repo_type, revision=revision, timeout=TIMEOUT_SECONDS)
        return snapshot(cached=False)
    except RepositoryNotFoundError:
        raise UserError(
            f"{what}: the hub has no such repository, or it is private: check `repo`, or `hf auth login`"
        ) from None
    except RevisionNotFoundError:
        raise UserError(f"{what}: the repository has no such commit: check `revision`") from None
    except (ClientError, OSError, HFValidationError) as error:
        raise UserError(
            f"{what} is not in the local cache and the hub cannot be reached ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}): connect to the network (HF_HUB_OFFLINE must not be 1), or "
            "download the files elsewhere and name them with `kind: local`"
        ) from None


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files under `folder` whose relative path matches `pattern` as the hub matches it, in order."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if fnmatch(file.relative_to(folder).as_posix(), pattern))
