"""Conditional nodes of CUDA graphs: layers that the device itself leaves out once no row is there.

The host then takes no part in a batch. PyTorch has conditional nodes from 2.12 on; these go through the CUDA
bindings, which PyTorch for CUDA 13 brings along, and so work with older ones too.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#conditional-graph-nodes

The exit tests that a graph computes in parallel with its layers are captured on streams of `Conditions` too.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from leap.exits.cuda.buckets import STAYING
from leap.exits.cuda.compiled import architecture, check_answer, machine_code

log = logging.getLogger(__name__)

# Calls have other arguments before.
BINDINGS = 13
SOURCE = """
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(unsigned long long handle,
                                                                      unsigned int value);
extern "C" __global__ void decide(unsigned long long handle, const long long* counter, long long staying) {
  cudaGraphSetConditional(handle, (*counter & staying) != 0);
}
"""
_LAUNCH = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64)


class Conditions:
    """Makes the rest of a graph that is being captured run only where an exit test left rows.

    Example:
        >>> with torch.cuda.graph(graph), conditions.parts() as if_rows_stay:
        ...     first_layers()
        ...     if_rows_stay(bucket.counters[6:7])
        ...     other_layers()
    """

    def __init__(self, device: torch.device) -> None:
        """Compile the kernel that decides, and try a conditional node; RuntimeError or ImportError if it fails."""
        import cuda.bindings
        from cuda.bindings import driver

        if int(cuda.bindings.__version__.partition(".")[0]) < BINDINGS:
            raise ImportError(f"cuda-bindings {cuda.bindings.__version__} is older than {BINDINGS}")
        self.device = device
        self._driver = driver
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # the device's context is there
            code = machine_code(SOURCE, [architecture(device)])
            self._module = check_answer(driver.cuModuleLoadData(code))
            self._decide = check_answer(driver.cuModuleGetFunction(self._module, b"decide"))
            self._context = check_answer(driver.cuCtxGetCurrent())
            # Where an exit test runs in parallel with a layer, the layer's blocks go first: the batch waits for
            # the layer alone. A graph's kernels have the priority of the stream that they were captured on.
            least, greatest = (int(end) for end in check_answer(driver.cuCtxGetStreamPriorityRange()))
            self.layers, self._side = self._own_stream(greatest), self._own_stream(greatest)
            # For the tests: one for the graph and one for the bodies of its nodes, for a stream belongs to one
            # capture at a time.
            self.tests = (self._own_stream(least), self._own_stream(least))
            # A body is a capture of its own, which the graph's pool does not see: what it allocates would be
            # given to others later.
            self._pool = torch.cuda.MemPool()
            self._try()

    def _own_stream(self, priority: int) -> torch.cuda.Stream:
        """Create a stream that is nobody else's, or another thread's work would be captured with ours."""
        kind = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = check_answer(self._driver.cuStreamCreateWithPriority(kind, priority))
        return torch.cuda.ExternalStream(int(stream), device=self.device)  # type: ignore[no-untyped-call]

    @contextmanager
    def parts(self) -> Iterator[Callable[[Tensor], None]]:
        """Yield, within a capture on the stream that is captured, what ends a part.

        Launches after it run only where a counter says that rows stay when the graph gets there, [1] int64 on
        the device, of `leap.exits.cuda.buckets.Bucket.counters`. Every part lies within the one before, so what is
        left out costs nothing.
        """
        side = self._side.cuda_stream
        inside = False

        def if_rows_stay(counter: Tensor) -> None:
            nonlocal inside
            body = self._condition(torch.cuda.current_stream(self.device), counter)
            if inside:  # the node is the last one of the part before
                check_answer(self._driver.cuStreamEndCapture(side))
            inside = False
            mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            check_answer(self._driver.cuStreamBeginCaptureToGraph(side, body, None, None, 0, mode))
            inside = True
            torch.cuda.set_stream(self._side)

        before = torch.cuda.current_stream(self.device)
        with torch.cuda.use_mem_pool(self._pool, self.device):
            try:
                yield if_rows_stay
            finally:
                torch.cuda.set_stream(before)
                if inside:
                    ended = self._driver.cuStreamEndCapture(side)
        if inside:
            check_answer(ended)

    def _condition(self, stream: torch.cuda.Stream, counter: Tensor) -> Any:
        """Append the decision and a conditional node to a capture; return the node's body."""
        driver = self._driver
        graph, _ = self._capture_state(stream)
        # Without a default, which would be assigned at every launch: the decision always comes first.
        handle = check_answer(driver.cuGraphConditionalHandleCreate(graph, self._context, 0, 0))
        arguments = (int(handle), counter.data_ptr(), STAYING)
        launch = (self._decide, *(1, 1, 1), *(1, 1, 1), 0, stream.cuda_stream, (arguments, _LAUNCH), 0)
        check_answer(driver.cuLaunchKernel(*launch))
        return self._add_node(stream, handle)

    def _add_node(self, stream: torch.cuda.Stream, handle: Any) -> Any:
        driver = self._driver
        graph, after = self._capture_state(stream)
        node = driver.CUgraphNodeParams()
        node.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node.conditional.handle = handle
        node.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        node.conditional.size = 1
        node.conditional.ctx = self._context
        added = check_answer(driver.cuGraphAddNode(graph, after, None, len(after), node))
        replace = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        check_answer(driver.cuStreamUpdateCaptureDependencies(stream.cuda_stream, [added], None, 1, int(replace)))
        return node.conditional.phGraph_out[0]

    def _capture_state(self, stream: torch.cuda.Stream) -> tuple[Any, Any]:
        """Return the graph that a stream is captured into, and the nodes before the next."""
        status, _, graph, after, *_ = check_answer(self._driver.cuStreamGetCaptureInfo(stream.cuda_stream))
        if status != self._driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            raise RuntimeError("no graph is being captured")
        return graph, after or []

    def _try(self) -> None:
        """Capture two nodes, one within the other, and run them each way."""
        counters = torch.zeros(2, dtype=torch.int64, device=self.device)
        total = torch.zeros(1, device=self.device)
        graph = torch.cuda.CUDAGraph()
        captured = torch.cuda.graph(graph, stream=self.layers, capture_error_mode="thread_local")
        with captured, self.parts() as if_rows_stay:
            total.fill_(1.0)
            for number in range(2):
                if_rows_stay(counters[number : number + 1])
                total.add_(torch.full((1,), 1.0, device=self.device))
        for first, second, wanted in ((0, 0, 1), (STAYING + 1, 1, 1), (1, 0, 2), (1, STAYING, 3), (0, 1, 1)):
            counters.copy_(torch.tensor([first, second]))
            graph.replay()
            if total.item() != wanted:
                raise RuntimeError(f"conditional nodes gave {total.item()}, not {wanted}")


class ParallelWork:
    """Work that runs while the current stream's does, in its own order; without a stream, in turn with it."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream
        self._begun = False
        self._read: list[Tensor] = []

    @contextmanager
    def launches(self, *read: Tensor) -> Iterator[None]:
        """Launch what is within after all that was launched before; it reads these tensors."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        self._begun = True
        self._read.extend(read)  # until the work is waited for, their memory is nobody else's
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the work; a stream without any is not in a capture, and must not be."""
        if self._stream is not None and self._begun:
            torch.cuda.current_stream().wait_stream(self._stream)


def conditions(device: torch.device) -> Conditions | None:
    """Return conditional nodes on a device; None, and a line in the log, where there are none."""
    if device.type != "cuda":
        return None
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        log.info("exit path graphs: the host says when a batch is done: cuda-bindings is not installed")
        return None
    try:
        return Conditions(device)
    except (RuntimeError, ImportError, OSError, AttributeError, TypeError) as error:
        log.info("exit path graphs: the host says when a batch is done: %s: %s", type(error).__name__, error)
        return None
