"""The base of every settings block: frozen, typed, unknown keys refused."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


class Block(BaseModel):
    """A block of the settings."""

    # Strict: `yes` is no number and "3" no 3, for DVC would hand them on as they stand.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


# Names become folder names and parts of DVC stage names (`train@leap-1`), so they are plain words.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


def _seeds_differ(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("names a seed twice")
    return seeds


Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1), AfterValidator(_seeds_differ)]
# Of the Hugging Face Hub: owner/name; no part begins with a dot, so none is a folder above.
Repository = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}$")
]
# As distributions are named (packaging.python.org, "Names and normalization").
Package = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
# A name that becomes part of a file's name, of no one else's choosing than the user's: no separators.
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]


def _no_controls(path: str) -> str:
    if not path or any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ValueError("a path must not be empty or hold control characters")
    return path


def _stays_inside(path: str) -> str:
    parts = path.replace("\\", "/").split("/")
    if path.startswith(("/", "\\", "~")) or ".." in parts or (len(path) > 1 and path[1] == ":"):
        raise ValueError("must be relative and must not leave its folder")
    return path


# Any path of this machine, and one that stays in the folder that it is relative to.
SafePath = Annotated[str, AfterValidator(_no_controls)]
InnerPath = Annotated[SafePath, AfterValidator(_stays_inside)]
