"""The monitor of one encoder in one process: counts every batch, shadows a sample, writes window files.

It never stands in the way of serving: a window that cannot be written costs one warning.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torch import Tensor

from leap.core.errors import UserError
from leap.exits.policy import ByPredictors, Calibrated, Capped, ExitPolicy, Patient
from leap.exits.rules import ExitRule
from leap.models.folder import hash_weights
from leap.serve.score_shift import ScoreReference
from leap.serve.window import Window
from leap.serve.window_writer import WindowWriter

if TYPE_CHECKING:
    from leap.exits.leap_encoder import LeapEncoder

FOLDER_VARIABLE = "LEAP_MONITOR_FOLDER"
RATE_VARIABLE = "LEAP_MONITOR_SHADOW_RATE"
HOURS_VARIABLE = "LEAP_MONITOR_WINDOW_HOURS"
EXPECTED_VARIABLE = "LEAP_MONITOR_EXPECTED_LAYERS"

SHADOW_RATE = 0.01
WINDOW_HOURS = 24.0
# A process that is killed loses what it counted since the last write.
WRITE_SECONDS = 10.0

STRATEGIES = {ExitRule: "converged", Patient: "patience", ByPredictors: "predictors", Calibrated: "calibrated"}


class Monitor:
    """Counts what an encoder does. Threads may share it; every process needs its own.

    Example:
        >>> model = LeapEncoder("models/leap-1")
        >>> model.monitor = Monitor(model, Path("windows"))
    """

    def __init__(
        self,
        model: LeapEncoder,
        folder: Path,
        *,
        shadow_rate: float = SHADOW_RATE,
        window_hours: float = WINDOW_HOURS,
        write_seconds: float = WRITE_SECONDS,
        expected_layers: float | None = None,
        seed: int | None = None,
    ) -> None:
        """Start the first window.

        Args:
            model: the encoder that will be watched.
            folder: where window files go, `<start>-<host>-<process>.json`.
            shadow_rate: share of sentences that are also computed to full depth.
            window_hours: a window's length; then the next file begins.
            write_seconds: the open window is written with its first batch, and at most this long after any
                other; also when the monitor is dropped and when the process ends.
            expected_layers: E[layers] of the evaluation (`exit.expected_layers` of diagnose.json).
            seed: of the sample; by chance if None.

        Raises:
            UserError: the folder cannot be written, or a value is out of range.
        """
        if not 0 <= shadow_rate <= 1:
            raise UserError(f"shadow_rate {shadow_rate} is not a share: give a number from 0 to 1")
        if not (window_hours > 0 and write_seconds >= 0):
            raise UserError(
                f"window_hours {window_hours} must be above 0, and write_seconds {write_seconds} 0 or more"
            )
        if expected_layers is not None and not 1 <= expected_layers <= model.depth:
            raise UserError(
                f"expected_layers {expected_layers} is not a number of layers of this model: give 1 to "
                f"{model.depth}"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{folder}, the folder for window files, cannot be made ({error}): name another"
            ) from None
        self.folder = folder
        identity = {
            "checkpoint": hash_weights(model.folder),
            "depth": model.depth,
            "exit_rule": {
                "threshold": model.rule.threshold,
                "min_layer": model.rule.min_layer,
                "patience": model.rule.patience,
            },
        }
        self._writer = WindowWriter(
            folder,
            identity,
            model.encoder.config.width,
            ScoreReference.load(model.folder),
            shadow_rate=shadow_rate,
            window_seconds=3600 * window_hours,
            write_seconds=write_seconds,
            expected_layers=expected_layers,
            seed=seed,
        )
        # Runs when nothing refers to the monitor any more, and at the latest when the process ends.
        weakref.finalize(self, self._writer.close)

    @classmethod
    def from_environment(cls, model: LeapEncoder, values: Mapping[str, str] = os.environ) -> Self | None:
        """Make the monitor that LEAP_MONITOR_FOLDER and its companions ask for; None where they ask for none.

        Raises:
            UserError: a variable is not a number, or as the constructor.
        """
        folder = values.get(FOLDER_VARIABLE)
        if not folder:
            return None
        return cls(
            model,
            Path(folder),
            shadow_rate=_number(values, RATE_VARIABLE, SHADOW_RATE),
            window_hours=_number(values, HOURS_VARIABLE, WINDOW_HOURS),
            expected_layers=_number(values, EXPECTED_VARIABLE, 0.0) or None,
        )

    def sample(self, rows: int) -> list[bool]:
        return self._writer.sample(rows)

    def record(
        self,
        policy: ExitPolicy,
        exits: Tensor,
        similarities: Mapping[int, Tensor],
        exited: Tensor | None = None,
        layers: Tensor | None = None,
    ) -> None:
        """Count one batch; see `leap.exits.observer.Observer.record`."""
        self._writer.record(rule_text(policy), patience_of(policy), exits, similarities, exited, layers)

    def bypass(self, rows: int) -> None:
        self._writer.bypass(rows)

    def window(self) -> Window:
        return self._writer.window()

    def flush(self) -> None:
        self._writer.flush()


def rule_text(policy: ExitPolicy) -> str:
    """Put an exit policy into words: its strategy and its numbers."""
    if isinstance(policy, Capped):
        return f"{rule_text(policy.policy)}, at most {policy.most} layers"
    numbers: dict[str, float] = {}
    for part in (policy, getattr(policy, "rule", None)):
        if is_dataclass(part):
            values = {field.name: getattr(part, field.name) for field in fields(part)}
            numbers |= {name: value for name, value in values.items() if isinstance(value, int | float)}
    listed = ", ".join(f"{name} {numbers[name]:g}" for name in sorted(numbers, reverse=True))
    strategy = STRATEGIES.get(type(policy), type(policy).__name__)
    return f"{strategy}: {listed}" if listed else strategy


def patience_of(policy: ExitPolicy) -> int | None:
    """Return the k of the similarity cos(p_l, p_{l-k}) that a policy looks at; None if at another score."""
    if isinstance(policy, Capped):
        return patience_of(policy.policy)
    rule = getattr(policy, "rule", policy)
    if isinstance(policy, Calibrated):
        return policy.calibration.patience
    return rule.patience if isinstance(rule, ExitRule) else None


def _number(values: Mapping[str, str], name: str, default: float) -> float:
    text = values.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name}={text!r} in the environment is not a number: set one, or unset it") from None
