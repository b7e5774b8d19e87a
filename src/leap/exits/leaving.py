"""Who leaves where: `LeapEncoder`'s part that turns `encode`'s arguments and leap.json into a pass that stops."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leap.exits.calibration import Calibration
from leap.exits.observer import Observer
from leap.exits.paths import PathName, Paths
from leap.exits.policy import ByPredictors, Calibrated, ExitPolicy, Fixed, Patient, capped
from leap.exits.rules import ExitRule, at_layers, near_final
from leap.exits.similarity_predictors import Predictors
from leap.models.batches import Batch
from leap.models.exit_heads import ExitHeads
from leap.models.library_tokenizer import LibraryTokenizer
from leap.models.tokenizer import SentenceTokenizer
from leap.models.walk import Walkable

Strategy = Literal["converged", "patience", "predictors", "calibrated", "full", "fixed", "near_final"]

InputType = Literal["query", "document"]

Leave = Callable[[Batch], tuple[Tensor, Tensor]]


class Leaving:
    """An encoder with its exit rules, before it is given texts."""

    folder: Path
    device: torch.device
    encoder: Walkable
    tokenizer: SentenceTokenizer | LibraryTokenizer
    rule: ExitRule
    # The arguments of `encode` that leap.json has for queries and documents.
    input_rules: dict[str, dict[str, Any]]
    # What leaves early goes through them; None where the layers' own vectors leave.
    heads: ExitHeads | None
    # A returned vector's dimensions; None where all are returned.
    truncate_dim: int | None
    path: PathName
    # Counts what leaves; leap.serve.
    monitor: Observer | None

    def __init__(self) -> None:
        """Leave the paths to be found when the first batch comes."""
        self._paths: Paths | None = None
        self._lock = Lock()

    @property
    def depth(self) -> int:
        """L."""
        return self.encoder.config.layers

    @property
    def width(self) -> int:
        """D, the dimensions of a vector."""
        return self.encoder.config.width

    @cached_property
    def predictors(self) -> Predictors:
        """The folder's predictors; reading them raises UserError where there are none for these weights."""
        return Predictors.load(self.folder, self.depth, self.width).to(self.device)

    @cached_property
    def calibration(self) -> Calibration:
        """The folder's calibration; reading it raises UserError where there is none for these weights."""
        return Calibration.load(self.folder, self.depth).to(self.device)

    @property
    def paths(self) -> Paths:
        """Choose how batches are computed, again when the weights moved or changed their precision.

        Raises:
            UserError: the path that was asked for does not work here.
        """
        with self._lock:
            paths = self._paths
            if paths is None or paths.encoder is not self.encoder or paths.moved():
                self._paths = paths = Paths(self.encoder, self.path)
            return paths

    @torch.inference_mode()
    def warm_up(
        self,
        batch_sizes: Sequence[int] = (1, 32),
        lengths: Sequence[int] = (16, 32, 64),
        *,
        strategy: Strategy = "converged",
        **exits: Any,
    ) -> None:
        """Compiles and captures now what `encode` would on first use; on a CPU there is nothing to do.

        Args:
            batch_sizes: the batches that will come: rows,
            lengths: and tokens of their longest row; every combination.
            strategy: as in `encode`, and so are threshold, min_layer, patience, layer and pabee_patience.
            exits: those.

        Raises:
            UserError: the path that was asked for does not work here.
        """
        layer, pabee_patience = exits.pop("layer", None), exits.pop("pabee_patience", 2)
        self._check_strategy(strategy, layer)
        policy = self._policy(strategy, self.rule.changed(**exits), layer, pabee_patience)
        for rows in batch_sizes:
            for length in lengths:
                self.paths.warm(rows, min(length, self.tokenizer.max_length), policy, self.heads)

    def leave_by(
        self,
        *,
        strategy: Strategy | None = None,
        threshold: float | None = None,
        min_layer: int | None = None,
        patience: int | None = None,
        layer: int | None = None,
        pabee_patience: int = 2,
        max_layer: int | None = None,
        input_type: InputType | None = None,
    ) -> Leave:
        """Prepare what computes a batch: pooled vectors [B, D], not normalised, and exit layers [B].

        The arguments, and what is raised, are those of `encode`.
        """
        if strategy is None and (threshold, min_layer, patience, layer) == (None, None, None, None):
            said = self.input_rules.get(input_type or "", {})
            strategy, layer = said.get("strategy"), said.get("layer")
            threshold, min_layer, patience = (said.get(name) for name in ("threshold", "min_layer", "patience"))
        strategy = strategy or "converged"
        rule = self.rule.changed(threshold, min_layer, patience)
        self._check_strategy(strategy, layer)
        if strategy == "near_final":
            if max_layer is not None:
                raise ValueError("strategy near_final computes all layers: leave out max_layer")
            return self._oracle(rule.threshold, 1 if min_layer is None else min_layer)
        return self._exits(capped(self._policy(strategy, rule, layer, pabee_patience), max_layer, self.depth))

    def returned(self, pooled: Tensor) -> Tensor:
        """Return what an exit at each layer gives, [L + 1, N, D] pooled layers to [L + 1, N, d].

        Through the heads, and cut to the model's own dimensions d (truncate_dim).
        """
        return self._mapped(pooled)[..., : self.truncate_dim]

    def _mapped(self, pooled: Tensor) -> Tensor:
        """Return pooled layers through the heads, in all dimensions: [L + 1, N, D]."""
        return pooled if self.heads is None else self.heads.to(pooled.device).mapped(pooled)

    def _observe(
        self,
        monitor: Observer,
        policy: ExitPolicy,
        batch: Batch,
        vectors: Tensor,
        exits: Tensor,
        similarities: dict[int, Tensor],
    ) -> None:
        """Tells the monitor of a batch that exited; rows that it samples are computed to full depth too."""
        chosen = torch.tensor(monitor.sample(batch.rows))
        if not chosen.any():
            monitor.record(policy, exits, similarities)
            return
        shadowed, _ = batch.keep(chosen, batch.ids[:, None])
        exited = vectors[chosen.to(vectors.device)]
        monitor.record(policy, exits, similarities, exited, self.encoder(shadowed))

    def _policy(self, strategy: Strategy, rule: ExitRule, layer: int | None, pabee_patience: int) -> ExitPolicy:
        if strategy in ("full", "fixed"):
            return Fixed(layer or self.depth)
        if strategy == "calibrated":
            return Calibrated(self.calibration)
        rule.check_depth(self.depth)
        if strategy == "predictors":
            return ByPredictors(self.predictors, rule.threshold, rule.min_layer)
        if strategy == "patience":
            patient = Patient(rule, pabee_patience)
            patient.check_depth(self.depth)
            return patient
        return rule

    def _check_strategy(self, strategy: str, layer: int | None) -> None:
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy {strategy!r} is none of {', '.join(get_args(Strategy))}")
        if (strategy == "fixed") != (layer is not None):
            raise ValueError("layer goes with strategy='fixed', and only with it")
        if layer is not None and not 1 <= layer <= self.depth:
            raise ValueError(f"layer {layer} is not a layer of this model: 1 to {self.depth}")

    def _exits(self, policy: ExitPolicy) -> Leave:
        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            monitor = self.monitor
            similarities: dict[int, Tensor] | None = None if monitor is None else {}
            mapped, exits = self.paths.exits(batch, policy, similarities, self.heads)
            if monitor is not None and isinstance(policy, Fixed):
                monitor.bypass(batch.rows)
            elif monitor is not None:
                self._observe(monitor, policy, batch, mapped, exits, similarities or {})
            return mapped, exits

        return leave

    def _oracle(self, threshold: float, min_layer: int) -> Leave:
        ExitRule(threshold, min_layer).check_depth(self.depth)

        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            pooled = self._mapped(self.encoder(batch))
            # Compared as they are returned, given whole: `encode` cuts, and may be asked for more dimensions.
            exits = near_final(pooled[..., : self.truncate_dim], threshold, min_layer)
            return at_layers(pooled, exits), exits.cpu()

        return leave
