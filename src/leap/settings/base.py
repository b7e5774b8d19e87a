"""What every settings block shares: frozen, typed, unknown keys refused."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Block(BaseModel):
    """A block of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# Names become folder names and parts of DVC stage names (`train@leap-1`), so they are plain words.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
