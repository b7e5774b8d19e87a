"""Settings of the training text and of what is demanded of it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from leap.core.settings.base import Block, Name, SafePath
from leap.core.settings.sources import TextSource


class PassageSettings(Block):
    """Passages of several sentences of one source, in addition to the sentences."""

    share: float = Field(gt=0, le=1)
    sentences: Annotated[
        tuple[Annotated[int, Field(ge=2)], Annotated[int, Field(le=64)]], Field(strict=False)  # YAML has lists
    ]

    @field_validator("sentences")
    @classmethod
    def _ascending(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError("the least comes first, then the most")
        return value


class DataSettings(Block):
    """Training text and where local files lie."""

    folder: SafePath
    seed: int = Field(default=17, ge=0)
    min_characters: int = Field(default=20, ge=1)
    max_characters: int = Field(default=200, ge=21)
    # A text that is longer than max_characters is split into its sentences; else it is left out.
    split: bool = True
    max_sentences: int | None = Field(default=None, ge=100)
    passages: PassageSettings | None = None
    # This share of the sentences calibrates exits and trains nothing.
    held_out: float = Field(default=0.0, ge=0, le=0.5)
    sources: Annotated[dict[Name, TextSource], Field(min_length=1)]

    @property
    def name(self) -> str:
        """Name the training text by its sources, of many by the first three: "snli-multinli"."""
        names = list(self.sources)
        return "-".join(names if len(names) <= 5 else [*names[:3], f"and-{len(names) - 3}-more"])

    @property
    def longest_text(self) -> int:
        """Return the most characters that a row of the training text can have."""
        joined = self.passages.sentences[1] if self.passages else 1
        # A passage has a space, and perhaps a full stop of its own, after each sentence.
        return joined * (self.max_characters + 2) if joined > 1 else self.max_characters


class Expectation(BaseModel):
    """An expectation of Great Expectations on the table of sentences, with its own arguments."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: Annotated[str, Field(pattern=r"^expect_[a-z_]+$")]

    def arguments(self) -> dict[str, Any]:
        return self.model_dump(exclude={"type"})


class ValidationSettings(Block):
    """Demands on the extracted sentences, for Great Expectations."""

    # In addition to the project's own: {type: expect_..., column: sentence, ...}, as Great Expectations has them.
    expectations: list[Expectation] = []

    min_rows: int = Field(ge=1)
    min_english: float = Field(ge=0, le=1)
    max_truncated: float = Field(ge=0, le=1)
