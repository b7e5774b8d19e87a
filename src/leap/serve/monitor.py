"""The monitor of one encoder in one process: counts every batch, shadows a sample, writes window files.

It never stands in the way of serving: a window that cannot be written costs one warning.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.core.files import write_json
from leap.models.folder import hash_weights
from leap.serve.shadow import Reservoir
from leap.serve.window import Mean, Window

if TYPE_CHECKING:
    from leap.exits.leap_encoder import LeapEncoder

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "LEAP_MONITOR_FOLDER"
RATE_VARIABLE = "LEAP_MONITOR_SHADOW_RATE"
HOURS_VARIABLE = "LEAP_MONITOR_WINDOW_HOURS"
EXPECTED_VARIABLE = "LEAP_MONITOR_EXPECTED_LAYERS"

SHADOW_RATE = 0.01
WINDOW_HOURS = 24.0
# A server that ends by a signal (uvicorn does) runs nothing at exit: so much of its last window is lost.
WRITE_SECONDS = 10.0
# Window files of all processes that stay in the folder; the oldest go first.
KEEP = 1000


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
        """Starts the first window.

        Args:
            model: the encoder that will be watched.
            folder: where window files go, `<start>-<host>-<process>.json`.
            shadow_rate: share of sentences that are also computed to full depth.
            window_hours: a window's length; then the next file begins.
            write_seconds: the open window is written with its first batch and then this often, while there
                is traffic.
            expected_layers: E[layers] of the evaluation (`exit.expected_layers` of diagnose.json).
            seed: of the sample; by chance if None.

        Raises:
            UserError: the folder cannot be written, or a value is out of range.
        """
        if not 0 <= shadow_rate <= 1:
            raise UserError(f"shadow_rate {shadow_rate} is not a share: give a number from 0 to 1")
        if not (window_hours > 0 and write_seconds >= 0):
            raise UserError(f"window_hours {window_hours} must be above 0 and write_seconds not below it")
        if expected_layers is not None and not 1 <= expected_layers <= model.depth:
            raise UserError(f"expected_layers {expected_layers} is not within the model's 1 to {model.depth}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder for window files cannot be made: {error}") from None
        self.folder = folder
        self._model = {
            "checkpoint": hash_weights(model.folder),
            "depth": model.depth,
            "exit_rule": {
                "threshold": model.rule.threshold,
                "min_layer": model.rule.min_layer,
                "patience": model.rule.patience,
            },
        }
        self._width = model.encoder.config.width
        self._rate, self._expected = shadow_rate, expected_layers
        self._window_seconds, self._write_seconds = 3600 * window_hours, write_seconds
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._can_write = True
        self._begin()
        atexit.register(_close, weakref.ref(self))

    @classmethod
    def from_environment(cls, model: LeapEncoder, values: Mapping[str, str] = os.environ) -> Self | None:
        """The monitor that LEAP_MONITOR_FOLDER and its companions ask for; null where they ask for none.

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
        """Which rows of a batch are to be shadowed, by chance."""
        with self._lock:
            chosen: list[bool] = (self._random.random(rows) < self._rate).tolist()
        return chosen

    def record(
        self,
        exits: Tensor,
        similarities: Mapping[int, Tensor],
        exited: Tensor | None = None,
        layers: Tensor | None = None,
    ) -> None:
        """Counts one batch.

        Args:
            exits: [B] int64, each row's exit layer, counted from 1.
            similarities: layer to cos(p_l, p_{l-k}) of the rows still there, where it was computed anyway.
            exited: [b, D], the exited vectors of the shadowed rows.
            layers: [L + 1, b, D], their pooled vectors of all layers, index 0 the embedding layer.
        """
        counts = torch.bincount(exits.cpu(), minlength=len(self._exits) + 1)[1:].numpy()
        sums = dict(zip(similarities, _sums(list(similarities.values())), strict=True))
        near = []
        if exited is not None and layers is not None:
            near = _sums([F.cosine_similarity(each, layers[-1], dim=-1) for each in (exited, *layers[1:])])
        with self._lock:
            self._exits += counts
            for layer, (number, total, _) in sums.items():
                self._similarity[:, layer - 1] += (number, total)
            for place, (number, total, _) in enumerate(near):
                self._shadow[:, place] += (number, total)
            self._not_finite += sum(rest for *_, rest in (*sums.values(), *near))
            if exited is not None and layers is not None:
                self._reservoir.add(exited, layers[-1])
            self._write_if_due()

    def bypass(self, rows: int) -> None:
        """Counts sentences that were encoded without an exit rule (strategy full or fixed)."""
        with self._lock:
            self._bypassed += rows
            self._write_if_due()

    def window(self) -> Window:
        """The open window as it is now."""
        with self._lock:
            return self._window()

    def flush(self) -> None:
        """Writes the open window now."""
        with self._lock:
            self._write()

    def _begin(self) -> None:
        depth = self._model["depth"]
        assert isinstance(depth, int)
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()
        self._write_at = self._clock
        self._exits = np.zeros(depth, dtype=np.int64)
        self._bypassed = self._not_finite = 0
        # Rows: how many, and their sum. The shadow's first column is the exited vectors, then the layers.
        self._similarity = np.zeros((2, depth))
        self._shadow = np.zeros((2, depth + 1))
        self._reservoir = Reservoir(self._width, self._random)

    def _window(self) -> Window:
        return Window(
            started=self._started,
            # By the clock that nobody sets: a window never ends before it starts.
            ended=self._started + timedelta(seconds=time.monotonic() - self._clock),
            model=self._model,
            exits=tuple(self._exits.tolist()),
            bypassed=self._bypassed,
            not_finite=self._not_finite,
            similarity=tuple(_mean(*column) for column in self._similarity.T),
            shadowed=_mean(*self._shadow[:, 0]),
            to_final=tuple(_mean(*column) for column in self._shadow[:, 1:].T),
            agreement=self._reservoir.agreement(),
            expected_layers=self._expected,
        )

    def _write_if_due(self) -> None:
        now = time.monotonic()
        if now - self._clock >= self._window_seconds:
            self._write()
            self._begin()
            self._remove_oldest()
        elif now >= self._write_at:
            self._write()
            self._write_at = time.monotonic() + self._write_seconds

    def _write(self) -> None:
        if not self._exits.any() and not self._bypassed:
            return
        # The process is asked each time: a server may have forked since the window began.
        process = f"{socket.gethostname()}-{os.getpid()}"
        name = f"{self._started:%Y-%m-%dT%H%M%S.%f}Z-{process}.json"
        try:
            write_json(self.folder / name, self._window().as_json())
        except OSError as error:
            if self._can_write:
                logger.warning("monitoring: %s; serving goes on, the window is kept in memory", error)
            self._can_write = False
        else:
            self._can_write = True

    def _remove_oldest(self) -> None:
        for file in sorted(self.folder.glob("*.json"))[:-KEEP]:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("monitoring: an old window stays: %s", error)


def _close(monitor: weakref.ref[Monitor]) -> None:
    """What is left of the last window is written when the process ends."""
    found = monitor()
    if found is not None:
        found.flush()


def _sums(groups: Sequence[Tensor]) -> list[tuple[int, float, int]]:
    """Of each group how many values are finite, their sum, and how many are not; one copy from a device."""
    if not groups:
        return []
    values = torch.cat(list(groups)).double().cpu().numpy()
    ends = np.cumsum([len(group) for group in groups])
    return [_sum(part) for part in np.split(values, ends[:-1])]


def _sum(values: np.ndarray[Any, Any]) -> tuple[int, float, int]:
    finite = values[np.isfinite(values)]
    return len(finite), float(finite.sum()), len(values) - len(finite)


def _mean(number: float, total: float) -> Mean:
    return Mean(int(number), float(total / number) if number else None)


def _number(values: Mapping[str, str], name: str, default: float) -> float:
    text = values.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name}={text!r} is not a number") from None
