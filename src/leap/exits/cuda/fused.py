"""The CUDA fast path: a batch through all layers, exits included, in one kernel launch.

Its reference implementation is `leap.exits.forward`. The kernel packs rows into tiles that stop by themselves, so
nothing is captured per shape, and neither the host nor other rows are waited for.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from leap.exits.cuda.compiled import Kernel
from leap.exits.cuda.layouts import choose_layout, longest_row, shapes
from leap.exits.cuda.tiles import Layout, TileShape
from leap.exits.plan import Plan, fixed_plan
from leap.models.batches import Batch
from leap.models.exit_heads import ExitHeads
from leap.models.kernels.varlen import power_of_two
from leap.models.packed_encoder import Encoder, EncoderConfig, Layer

# Work space, plans and layouts held: streams in use at once, exit rules, and batches' lengths.
STREAMS = 4
PLANS = 64
LAYOUTS = 1024
# Of a batch: more are faster in large matrix products of PyTorch's own (docs/log).
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
        >>> vectors, exits = fused.run(batch, plan_of(ExitRule(0.95, 6), 12))
    """

    def __init__(self, encoder: Encoder) -> None:
        """Take over the encoder's weights: its parameters become views of one block.

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
        # Ordinary tensors even where the first sentence is encoded: they stay the encoder's parameters.
        with torch.inference_mode(False), torch.no_grad():
            self._weights, self._norms = _join_weights(encoder)
        embeddings = [
            table.weight for table in (encoder.words, encoder.places, encoder.types) if table is not None
        ]
        self._tables = [table.data_ptr() for table in (*embeddings, self._norms, self._weights)]
        self._lock = Lock()
        self._work: OrderedDict[int, dict[str, Tensor]] = OrderedDict()
        self._plans: OrderedDict[Plan, tuple[Tensor, Tensor]] = OrderedDict()
        self._layouts: OrderedDict[tuple[int, ...], Layout] = OrderedDict()
        self._kernels: dict[TileShape, Kernel] = {}

    def place(self, batch: Batch, layout: Layout | None = None) -> Placed:
        """Cut up a batch whose longest row fits a tile (`fits`) and put it on the device."""
        lengths = tuple(batch.lengths.tolist())
        layout = layout or self.layout(lengths)
        numbers = [*layout.tiling.starts, *layout.tiling.rows]
        table = torch.tensor(numbers, dtype=torch.int32).to(self.device, non_blocking=True)
        moved = batch.to(self.device)
        return Placed(moved.ids, moved.positions, table, len(lengths), layout)

    def layout(self, lengths: tuple[int, ...]) -> Layout:
        with self._lock:
            if lengths not in self._layouts:
                self._layouts[lengths] = choose_layout(lengths, self.config, self.processors)
            self._layouts.move_to_end(lengths)
            while len(self._layouts) > LAYOUTS:
                self._layouts.popitem(last=False)
            return self._layouts[lengths]

    def full(self, batch: Batch | Placed) -> Tensor:
        """Compute the last layer's pooled vectors, [B, D] float32, not normalised."""
        return self.at(batch, self.config.layers)

    def at(self, batch: Batch | Placed, layer: int) -> Tensor:
        """Compute one layer's pooled vectors, [B, D] float32, not normalised, and no later layer."""
        return self.run(batch, fixed_plan(layer, self.config.layers))[0]

    def warm_up(self) -> None:
        """Compile the kernel for every tile, some seconds each, so that no later call waits for it."""
        for shape in shapes(self.config):
            with self._lock:
                self._kernel(shape)

    def run(self, batch: Batch | Placed, plan: Plan, heads: ExitHeads | None = None) -> tuple[Tensor, Tensor]:
        """Compute the rows' vectors where the plan lets them leave, as `leap.exits.paths.FastPath.run`."""
        placed = self.place(batch) if isinstance(batch, Batch) else batch
        layout = placed.layout
        # At full depth there is no head.
        maps = heads.maps if heads is not None and plan.exits_at[0] < self.config.layers else None
        vectors, mapped = torch.empty(2, placed.rows, self.config.width, device=self.device)
        exits = torch.empty(placed.rows, dtype=torch.int64, device=self.device)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with self._lock:
            kernel = self._kernel(layout.shape)
            numbers = self._numbers(plan)
            work = self._workspace(stream, len(placed.ids), placed.rows * (plan.patience + 1))
            kernel.launch(
                layout.groups * layout.members,
                stream,
                placed.ids.data_ptr(),
                placed.positions.data_ptr(),
                placed.table.data_ptr(),
                placed.table.data_ptr() + 4 * (placed.rows + 1),
                *(tensor.data_ptr() for tensor in numbers),
                *self._tables,
                0 if maps is None else maps.data_ptr(),
                *(buffer.data_ptr() for buffer in work.values()),
                vectors.data_ptr(),
                mapped.data_ptr(),
                exits.data_ptr(),
                plan.patience,
                placed.rows,
                len(layout.tiling),
                layout.groups,
                layout.members,
                plan.stop,
                0 if maps is None else len(maps),
                self.config.layer_norm_eps,
            )
        return vectors if maps is None else mapped, exits

    def _kernel(self, shape: TileShape) -> Kernel:
        if shape not in self._kernels:
            dtype = self.encoder.words.weight.dtype
            self._kernels[shape] = Kernel(self.config, shape, dtype, self.device)
        return self._kernels[shape]

    def _numbers(self, plan: Plan) -> tuple[Tensor, Tensor]:
        if plan not in self._plans:
            self._plans[plan] = (
                torch.tensor(plan.flags(), dtype=torch.int32, device=self.device),
                torch.tensor([torch.inf, *plan.thresholds], dtype=torch.float32, device=self.device),
            )
        self._plans.move_to_end(plan)
        while len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return self._plans[plan]

    def _workspace(self, stream: int, tokens: int, pooled: int) -> dict[str, Tensor]:
        work = self._work.get(stream)
        if work is None or len(work["states"]) < tokens + SPARE or len(work["recent"]) < pooled:
            have = (len(work["states"]), len(work["recent"])) if work else (0, 0)
            sizes = max(have[0], power_of_two(tokens) + SPARE), max(have[1], power_of_two(pooled))
            self._work[stream] = work = _work_space(self.encoder, *sizes, self.processors)
        self._work.move_to_end(stream)
        while len(self._work) > STREAMS:
            self._work.popitem(last=False)
        return work


def unsupported(encoder: Encoder) -> str | None:
    """Say why the fused kernel cannot compute this encoder; None where it can."""
    config, weight = encoder.config, encoder.words.weight
    head, rest = divmod(config.width, config.heads)
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"its weights are {weight.dtype}, not float16 or bfloat16"
    if encoder.types is None or config.family.places_after_padding or config.relative_buckets:
        return f"it is a {config.family.model_type} model"
    if encoder.pooling != "mean":
        return f"it pools by {encoder.pooling}, not by the mean"
    if rest or head % 32:
        return f"heads of {config.width / config.heads:g} numbers, no multiple of 32"
    if not shapes(config):
        return f"widths {config.width} and {config.intermediate}, which do not divide into its tiles"
    return None


def fits(batch: Batch, config: EncoderConfig, most_tokens: int = MOST_TOKENS) -> bool:
    """Check for a batch that the kernel takes: no row longer than the largest tile, and not too many tokens."""
    return batch.groups[-1].length <= longest_row(config) and len(batch.ids) <= most_tokens


def _join_weights(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Return all layers' weights in one block [L, numbers of a layer], and all norms [L + 1, 2, D].

    The encoder's own parameters become views of the block, so the weights are held once.
    """
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    weights = torch.stack(
        [torch.cat([part.data.flatten() for part in _order_parameters(layer)]) for layer in layers]
    )
    for block, layer in zip(weights, layers, strict=True):
        start = 0
        for part in _order_parameters(layer):
            size = part.numel()
            part.data = block[start : start + size].view_as(part)
            start += size
    norms = [encoder.norm, *(layer.norm for layer in layers)]
    pairs = torch.stack([torch.stack([norm.weight.data, norm.bias.data]) for norm in norms])
    for norm, pair in zip(norms, pairs, strict=True):
        norm.weight.data, norm.bias.data = pair
    return weights, pairs


def _order_parameters(layer: Layer) -> list[Tensor]:
    """A layer's parameters in the kernel's order; its last norm is held apart."""
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
