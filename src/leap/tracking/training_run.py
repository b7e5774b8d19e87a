"""The live run of a training: curves while they grow, at a bounded cost.

`history.jsonl` of the trainer is the truth: what cannot be sent from here, `promote` logs from there. It also
makes the run that of the model, to which the exit rule belongs.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from leap.tracking.entities import METRICS_A_CALL, history_metrics, metric, params_of, source_tags
from leap.tracking.store import StoreError, Tracking

if TYPE_CHECKING:
    from mlflow.entities import Metric

logger = logging.getLogger(__name__)

# Sending may take this share of the time that training takes.
SHARE = 0.02


class TrainingRun:
    """One training in MLflow: RUNNING, then FINISHED, FAILED, or KILLED by a signal.

    A context manager. A run whose process died is closed as KILLED by whoever opens the tracking next.
    """

    def __init__(self, tracking: Tracking, variant: str, seed: int, parameters: dict[str, Any]) -> None:
        self._tracking = tracking
        self._tags = {
            "leap.variant": variant,
            "leap.seed": str(seed),
            "leap.profile": tracking.settings.profile,
        }
        self._name = f"{variant}-{seed}"
        # The exit rule may change before the run is complete, and a parameter of MLflow cannot.
        self._parameters = {name: value for name, value in parameters.items() if name != "exit"}
        self._id: str | None = None
        self._finished = False
        self._waiting: list[Metric] = []
        self._not_before = 0.0
        self._restore_signal: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._restore_signal = _raise_on_sigterm()
        self._attempt(self._start)
        return self

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Log numbers of one step; never raise, never take more than 2 % of the time."""
        if self._tracking.client is None:
            return
        now = int(time.time() * 1000)
        self._waiting += [metric(name, value, step, now) for name, value in history_metrics(values).items()]
        if time.monotonic() >= self._not_before:
            started = time.monotonic()
            self._attempt(self._send if self._id else self._start)
            self._not_before = time.monotonic() + (time.monotonic() - started) / SHARE

    def finish(self, checkpoint: str) -> None:
        """End the run of a training whose files are written: name it by the sha256 of the weights."""
        self._finished = True
        if self._id is not None:
            self._attempt(lambda: self._close(checkpoint))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore_signal()
        if self._id is None or self._finished:
            return
        killed = error is not None and not isinstance(error, Exception)
        self._attempt(lambda: self._end("KILLED" if killed else "FAILED"))

    def _start(self) -> None:
        client = self._tracking.client
        if client is None:
            return
        tags = self._tags | source_tags("stages/train.py")
        self._id = self._tracking.create_run(self._name, tags).info.run_id
        from mlflow.entities import Param

        params = [Param(name, value) for name, value in params_of(self._parameters).items()]
        client.log_batch(self._id, params=params[:100])

    def _send(self) -> None:
        assert self._tracking.client is not None
        assert self._id is not None
        while self._waiting:
            self._tracking.client.log_batch(self._id, self._waiting[:METRICS_A_CALL])
            del self._waiting[:METRICS_A_CALL]

    def _close(self, checkpoint: str) -> None:
        assert self._tracking.client is not None
        assert self._id is not None
        trained = {**self._tags, "leap.checkpoint": checkpoint}
        if self._tracking.find(trained):
            # Trained again to the same bits: one run a checkpoint, and the older one has the evidence.
            self._tracking.client.delete_run(self._id)
            return
        self._send()
        self._tracking.client.set_tag(self._id, "leap.checkpoint", checkpoint)
        self._end("FINISHED")

    def _end(self, status: str) -> None:
        assert self._tracking.client is not None
        assert self._id is not None
        self._tracking.client.set_terminated(self._id, status)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            logger.warning("tracking: %s; training goes on, its curves are logged later", error)


def _raise_on_sigterm() -> Callable[[], None]:
    """Let SIGTERM unwind the stack, unless the program has its own handler; return what undoes it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def restore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, stop)
    return restore
