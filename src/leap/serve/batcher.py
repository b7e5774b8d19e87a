"""Dynamic batching: requests that wait while the model computes are encoded together, next.

Nothing waits on purpose: an idle model takes a single request at once, and under load a batch is what arrived
during the last one. One thread computes, so that a batch has all cores.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Facts = NDArray[np.int64]
Encode = Callable[..., tuple[Vectors, Facts]]


class Overloaded(Exception):  # noqa: N818 - a state of the server, not a mistake
    """The server takes no more texts for now, or is stopping."""


@dataclass(frozen=True)
class Job:
    """The texts of one request."""

    texts: Sequence[str]
    options: tuple[tuple[str, Any], ...]
    done: "asyncio.Future[tuple[Vectors, Facts]]"
    alone: bool = False


class Batcher:
    """Encodes texts of many requests in batches; all methods belong to one event loop."""

    def __init__(
        self, encode: Encode, *, max_batch: int, max_queue: int, on_batch: Callable[[int], None] | None = None
    ) -> None:
        """Prepare the thread that computes.

        Args:
            encode: takes a list of texts and options, returns vectors [N, D] and a row of facts a text, [N, ...].
            max_batch: texts encoded together; a request with more is encoded alone.
            max_queue: texts that may wait; beyond them a request is refused.
            on_batch: is called with the number of texts of every batch.
        """
        self._encode, self._max_batch, self._max_queue = encode, max_batch, max_queue
        self._on_batch = on_batch or (lambda texts: None)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="leap-encode")
        self._waiting: deque[Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def queued(self) -> int:
        return sum(len(job.texts) for job in self._waiting)

    async def encode(self, texts: Sequence[str], options: Mapping[str, Any]) -> tuple[Vectors, Facts]:
        """Encode a request's texts.

        Raises:
            Overloaded: too many texts wait already, or the server is stopping.
        """
        if self._stopping:
            raise Overloaded("the server is stopping")
        if self.queued and self.queued + len(texts) > self._max_queue:
            raise Overloaded(f"{self.queued} texts are waiting")
        job = Job(texts, tuple(sorted(options.items())), asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await job.done

    async def close(self) -> None:
        self._stopping = True
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        while jobs := self._next():
            texts = [text for job in jobs for text in job.texts]
            self._on_batch(len(texts))
            try:
                encode = partial(self._encode, texts, **dict(jobs[0].options))
                vectors, facts = await asyncio.get_running_loop().run_in_executor(self._thread, encode)
            except Exception as error:  # noqa: BLE001 - whatever it is, its callers are answered
                self._answer_with(jobs, error)
                continue
            start = 0
            for job in jobs:
                stop = start + len(job.texts)
                if not job.done.done():
                    job.done.set_result((vectors[start:stop], facts[start:stop]))
                start = stop

    def _answer_with(self, jobs: list[Job], error: Exception) -> None:
        """One request's mistake is not its neighbours': a batch that failed is repeated, each request alone."""
        if len(jobs) > 1:
            self._waiting.extendleft(Job(job.texts, job.options, job.done, alone=True) for job in reversed(jobs))
        elif not jobs[0].done.done():
            jobs[0].done.set_exception(error)

    def _next(self) -> list[Job]:
        """The next requests with the same options, up to the size of a batch; those given up are dropped."""
        jobs: list[Job] = []
        size = 0
        while self._waiting:
            job = self._waiting[0]
            if job.done.done():
                self._waiting.popleft()
                continue
            full = size + len(job.texts) > self._max_batch
            if jobs and (full or job.alone or jobs[0].alone or job.options != jobs[0].options):
                break
            jobs.append(self._waiting.popleft())
            size += len(job.texts)
        return jobs
