"""The CUDA fast path: a batch through all layers, exits included, in one kernel launch.

Its slow twin is `leap.exits.forward`. The kernel packs rows into tiles that stop by themselves, so nothing is
captured per shape, and neither the host nor other rows are waited for.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from leap.exits.compiled import Kernel
from leap.exits.layouts import choose_layout, longest_row, shapes
from leap.exits.tiles import Layout, TileShape
from leap.model.batches import Batch, row_lengths
from leap.model.encoder import Encoder, EncoderConfig, Layer

# Work space and plans kept: streams in use at once, and exit rules.
STREAMS = 4
PLANS = 64
# Of a batch: more are faster in large matrix products of PyTorch's own (docs/log.md).
MOST_TOKENS = 2048
# A tile is read to its end though its rows end earlier.
SPARE = 128


@dataclass(frozen=True)
class Placed:
    """A batch on the device, cut up for the kernel.

    ids, positions: [N] int64. table: int32, the rows' first tokens [B + 1], then the tiles' first rows
    [tiles + 1].
    """

    ids: Tensor
    positions: Tensor
    table: Tensor
    rows: int
    layout: Layout


class FusedEncoder:
    """An encoder's forward pass as one kernel, for float16 and bfloat16 on CUDA.

    Example:
        >>> fused = FusedEncoder(encoder.half().cuda())
        >>> vectors, exits = fused.exit(batch, [math.inf] * 5 + [0.95] * 7)
    """

    def __init__(self, encoder: Encoder) -> None:
        """Takes over the encoder's weights: its parameters become views of one block.

        Args:
            encoder: on a CUDA device, in half precision; `unsupported` says what else it needs.

        Raises:
            ValueError: the kernel does not compute this encoder.
        """
        reason = unsupported(encoder)
        if reason:
            raise ValueError(f"the fused kernel does not compute this encoder: {reason}")
        self.encoder = encoder
        self.config = encoder.config
        self.device = encoder.words.weight.device
        self.processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self._weights, self._norms = _joined(encoder)
        tables = (
            encoder.words.weight,
            encoder.places.weight,
            encoder.types.weight,
            self._norms,
            self._weights,
        )
        self._tables = [table.data_ptr() for table in tables]
        self._lock = Lock()
        self._work: OrderedDict[int, dict[str, Tensor]] = OrderedDict()
        self._plans: OrderedDict[tuple[float, ...], tuple[Tensor, Tensor]] = OrderedDict()
        self._kernels: dict[TileShape, Kernel] = {}

    def place(self, batch: Batch, layout: Layout | None = None) -> Placed:
        """Cuts a batch up and puts it on the device.

        Args:
            batch: B rows; the longest fits a tile (`fits`).
            layout: instead of the chosen one.
        """
        lengths = row_lengths(batch)
        layout = layout or choose_layout(lengths, self.config, self.processors)
        numbers = [*layout.tiling.starts, *layout.tiling.rows]
        table = torch.tensor(numbers, dtype=torch.int32).to(self.device, non_blocking=True)
        moved = batch.to(self.device)
        return Placed(moved.ids, moved.positions, table, len(lengths), layout)

    def full(self, batch: Batch | Placed) -> Tensor:
        """The last layer's pooled vectors, [B, D] float32, not normalised."""
        return self.at(batch, self.config.layers)

    def at(self, batch: Batch | Placed, layer: int) -> Tensor:
        """One layer's pooled vectors, [B, D] float32, not normalised; later layers are not computed."""
        return self._run(batch, (math.inf,) * self.config.layers, 1, layer)[0]

    def exit(
        self, batch: Batch | Placed, thresholds: Sequence[float], patience: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 1: a row leaves at the first layer l > k whose cos(p_l, p_(l-k)) reaches its threshold.

        Args:
            batch: B rows.
            thresholds: one a layer; infinity where no row may leave. The last layer's is not used.
            patience: k.

        Returns:
            The pooled vectors at each row's exit layer, [B, D] float32, not normalised, and the exit layers,
            [B] int64, counted from 1; both on the device.
        """
        return self._run(batch, tuple(thresholds), patience, self.config.layers)

    def warm_up(self) -> None:
        """Compiles the kernel for every tile, some seconds each, so that no later call waits for it."""
        for shape in shapes(self.config):
            with self._lock:
                self._kernel(shape)

    def _run(
        self, batch: Batch | Placed, thresholds: tuple[float, ...], patience: int, stop: int
    ) -> tuple[Tensor, Tensor]:
        placed = self.place(batch) if isinstance(batch, Batch) else batch
        layout = placed.layout
        vectors = torch.empty(placed.rows, self.config.width, device=self.device)
        exits = torch.empty(placed.rows, dtype=torch.int64, device=self.device)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with self._lock:
            kernel = self._kernel(layout.shape)
            plan = self._plan(thresholds, patience, stop)
            work = self._workspace(stream, len(placed.ids), placed.rows * (patience + 1))
            kernel.launch(
                layout.groups * layout.members,
                stream,
                placed.ids.data_ptr(),
                placed.positions.data_ptr(),
                placed.table.data_ptr(),
                placed.table.data_ptr() + 4 * (placed.rows + 1),
                *(numbers.data_ptr() for numbers in plan),
                *self._tables,
                *(buffer.data_ptr() for buffer in work.values()),
                vectors.data_ptr(),
                exits.data_ptr(),
                patience,
                placed.rows,
                len(layout.tiling),
                layout.groups,
                layout.members,
                stop,
                self.config.layer_norm_eps,
            )
        return vectors, exits

    def _kernel(self, shape: TileShape) -> Kernel:
        if shape not in self._kernels:
            dtype = self.encoder.words.weight.dtype
            self._kernels[shape] = Kernel(self.config, shape, dtype, self.device)
        return self._kernels[shape]

    def _plan(self, thresholds: tuple[float, ...], patience: int, stop: int) -> tuple[Tensor, Tensor]:
        key = (*thresholds, patience, stop)
        if key not in self._plans:
            flags = plan_flags(thresholds, patience, stop)
            self._plans[key] = (
                torch.tensor(flags, dtype=torch.int32, device=self.device),
                torch.tensor([math.inf, *thresholds], dtype=torch.float32, device=self.device),
            )
        self._plans.move_to_end(key)
        while len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return self._plans[key]

    def _workspace(self, stream: int, tokens: int, pooled: int) -> dict[str, Tensor]:
        """The stream's own work space, which grows to what the largest batch needed."""
        work = self._work.get(stream)
        if work is None or len(work["states"]) < tokens + SPARE or len(work["recent"]) < pooled:
            have = (len(work["states"]), len(work["recent"])) if work else (0, 0)
            sizes = max(have[0], _power_of_two(tokens) + SPARE), max(have[1], _power_of_two(pooled))
            self._work[stream] = work = _work_space(self.encoder, *sizes, self.processors)
        self._work.move_to_end(stream)
        while len(self._work) > STREAMS:
            self._work.popitem(last=False)
        return work


def unsupported(encoder: Encoder) -> str | None:
    """Why the fused kernel cannot compute this encoder; None where it can."""
    config, weight = encoder.config, encoder.words.weight
    head, rest = divmod(config.width, config.heads)
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"its weights are {weight.dtype}, not float16 or bfloat16"
    if rest or head % 32:
        return f"heads of {config.width / config.heads:g} numbers, no multiple of 32"
    if not shapes(config):
        return f"widths {config.width} and {config.intermediate}, which do not divide into its tiles"
    return None


def fits(batch: Batch, config: EncoderConfig) -> bool:
    """Whether the kernel takes the batch: no row longer than the largest tile, and not too many tokens."""
    return batch.groups[-1].length <= longest_row(config) and len(batch.ids) <= MOST_TOKENS


def plan_flags(thresholds: Sequence[float], patience: int, stop: int) -> list[int]:
    """What to do with each layer's output, index 0 the embeddings': 0 nothing, 1 pool it, 2 test it too.

    Only layers that a test needs are pooled; the layer `stop` is pooled anyway, after the last step.
    """
    tests = {layer for layer in range(patience + 1, stop) if thresholds[layer - 1] < math.inf}
    pooled = {layer - patience for layer in tests}
    return [2 if layer in tests else int(layer in pooled) for layer in range(len(thresholds) + 1)]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _joined(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """All layers' weights in one block [L, numbers of a layer], and all norms [L + 1, 2, D].

    The encoder's own parameters become views of the block, so the weights are held once.
    """
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    weights = torch.stack([torch.cat([part.data.flatten() for part in _ordered(layer)]) for layer in layers])
    for block, layer in zip(weights, layers, strict=True):
        start = 0
        for part in _ordered(layer):
            size = part.numel()
            part.data = block[start : start + size].view_as(part)
            start += size
    norms = [encoder.norm, *(layer.norm for layer in layers)]
    return weights, torch.stack([torch.stack([norm.weight.data, norm.bias.data]) for norm in norms])


def _ordered(layer: Layer) -> list[Tensor]:
    """A layer's parameters in the kernel's order; its last norm's are kept apart."""
    return [
        layer.qkv.weight,
        layer.attention_out.weight,
        layer.up.weight,
        layer.down.weight,
        layer.qkv.bias,
        layer.attention_out.bias,
        layer.attention_norm.weight,
        layer.attention_norm.bias,
        layer.up.bias,
        layer.down.bias,
    ]


def _work_space(encoder: Encoder, tokens: int, pooled: int, processors: int) -> dict[str, Tensor]:
    """The kernel's buffers, in the order of its arguments."""
    weight, config = encoder.words.weight, encoder.config
    return {
        **{
            name: torch.empty(tokens, width, dtype=weight.dtype, device=weight.device)
            for name, width in (
                ("states", config.width),
                ("middle", config.width),
                ("normed", config.width),
                ("attended", config.width),
                ("wide", config.intermediate),
            )
        },
        "recent": torch.empty(pooled, config.width, dtype=torch.float32, device=weight.device),
        "counters": torch.zeros(processors * 16, dtype=torch.int64, device=weight.device),
    }
