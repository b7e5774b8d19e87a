"""A variant: what differs from the shared blocks, or a ready checkpoint."""

from typing import Any

from leap.core.settings.base import Block
from leap.core.settings.sources import ModelSource


class Variant(Block):
    """One block of `variants`: what differs from the shared blocks, or a ready checkpoint to evaluate."""

    description: str
    # A model to evaluate as it is, for example the teacher; nothing is trained then.
    checkpoint: ModelSource | None = None
    student: dict[str, Any] = {}
    loss: dict[str, Any] = {}
    train: dict[str, Any] = {}
    exit: dict[str, Any] = {}
