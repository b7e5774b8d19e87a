"""The interface by which `LeapEncoder` reports every batch that it encodes; `leap.serve.Monitor` has it."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from leap.exits.policy import ExitPolicy


class Observer(Protocol):
    """Counts batches; `leap.serve.Monitor` writes its counts to windows."""

    def sample(self, rows: int) -> list[bool]:
        """Choose the rows of a batch that are also to be computed to full depth."""

    def record(
        self,
        policy: ExitPolicy,
        exits: Tensor,
        similarities: Mapping[int, Tensor],
        exited: Tensor | None = None,
        layers: Tensor | None = None,
    ) -> None:
        """Count one batch that left by an exit rule.

        Args:
            policy: the rule that decided, as this call had it.
            exits: [B] int64, each row's exit layer, counted from 1.
            similarities: layer to cos(p_l, p_{l-k}) of the rows still there, where it was computed anyway.
            exited: [b, D], the exited vectors of the rows that `sample` chose.
            layers: [L + 1, b, D], all pooled layers of those rows.
        """

    def bypass(self, rows: int) -> None:
        """Count sentences that were encoded without an exit rule (strategy full or fixed)."""
