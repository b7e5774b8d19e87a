"""`leap export --push`: an exported folder to a repository of the Hugging Face Hub."""

from pathlib import Path

from leap.core.errors import UserError


def check_repository(name: str) -> None:
    """Check, before any work, that a repository can have this name.

    Raises:
        UserError: it cannot.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"--push {name}: a repository of the hub is named owner/name: {error}") from None
    if "/" not in name:
        raise UserError(f"--push {name}: name the owner too, as in your-name/{name}")


def push_folder(folder: Path, name: str, private: bool) -> str:
    """Upload a folder in one commit, and return the repository's address; a new repository is made.

    Raises:
        UserError: the hub does not answer, or does not take it.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined] # httpx's or httpx2's

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model exported by leap")
    except (HTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{folder} is written, and {name} on the hub did not take it ({reason}): check `hf auth whoami`, then "
            f"`hf upload {name} {folder}`"
        ) from None
    return str(address)
