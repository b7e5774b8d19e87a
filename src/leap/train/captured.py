"""A training step as one CUDA graph: some two thousand launches replayed as one.

At 1024 short sentences a step takes some 12 ms on an H100; launching its kernels one by one takes longer.
"""

import torch
from torch import Tensor

from leap.train.step import Step, StepInput

# Real steps, run kernel by kernel before the capture: they compile, tune and allocate.
WARM_UP = 3
# DistributedDataParallel rebuilds its buckets and takes times in its first ten steps
# (https://docs.pytorch.org/docs/stable/notes/cuda.html, "Usage with DistributedDataParallel").
WARM_UP_SHARED = 11


class CapturedStep:
    """Runs a step's first calls as they are, captures the next, and replays it from then on."""

    def __init__(self, step: Step, stream: torch.cuda.Stream, warm_up: int = WARM_UP) -> None:
        """Prepare the capture of a step whose inputs always have the same shapes; `warm_up` calls run as they are.

        The stream is for the first calls and the capture; DistributedDataParallel was made on it.
        """
        self.step = step
        self._calls, self._warm_up = 0, warm_up
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = stream

    def __call__(self, given: StepInput) -> Tensor:
        if self._calls == 0:
            self._static = given.map(Tensor.clone)
        for ours, theirs in zip(self._static.tensors(), given.tensors(), strict=True):
            ours.copy_(theirs, non_blocking=True)
        self._calls += 1
        if self._calls <= self._warm_up:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                values = self.step(self._static)
            torch.cuda.current_stream().wait_stream(self._stream)
            return values.clone()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        return self._values.clone()

    def _capture(self) -> None:
        self.step.optimizer.zero_grad()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's own thread asks for events meanwhile, which only the strictest mode forbids.
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            self._values = self.step(self._static)
