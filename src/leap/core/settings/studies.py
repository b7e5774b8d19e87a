"""Studies: further variants, trained at a size of their own, for one table of the paper each."""

from typing import Annotated, Any, Literal

from pydantic import Field

from leap.core.settings.base import Block, Name, Seeds
from leap.core.settings.sources import ModelSource
from leap.core.settings.variant import Variant

Weights = Literal["int8", "fp16", "bf16"]


class StudyVariant(Variant):
    """A variant of a study; it may have a teacher of its own."""

    teacher: ModelSource | None = None


class Study(Block):
    """One block of `studies`: what is trained or taken, and what is measured in addition to the usual figures.

    `student`, `loss`, `train` and `exit` are laid over the shared blocks, each variant's over those.
    """

    description: str
    # null: the seeds of the pipeline.
    seeds: Seeds | None = None
    # The first ones of the training text, which is in a random order; null: all.
    sentences: int | None = Field(default=None, ge=100)
    student: dict[str, Any] = {}
    loss: dict[str, Any] = {}
    train: dict[str, Any] = {}
    exit: dict[str, Any] = {}
    variants: Annotated[dict[Name, StudyVariant], Field(min_length=1)]
    # Exit thresholds theta tried on every variant, under both rules.
    thresholds: list[Annotated[float, Field(ge=-1.0, le=1.0)]] = []
    # PABEE's p: so many layers in a row that hardly move.
    patiences: list[Annotated[int, Field(ge=1)]] = []
    # Shares of the vector's width that are kept, its first dimensions.
    widths: list[Annotated[float, Field(gt=0.0, le=1.0)]] = []
    # The same checkpoint with weights of fewer bits; on a CPU the time too, int8 there only.
    weights: list[Weights] = []
