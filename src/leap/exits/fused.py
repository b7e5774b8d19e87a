"""The CUDA fast path: a batch through all layers, exits included, in one kernel launch.

Its slow twin is `leap.exits.forward`. The kernel packs rows into tiles that stop by themselves, so nothing is
captured per shape, and neither the host nor other rows are waited for.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leap.exits.layouts import choose_layout, shapes
from leap.exits.tiles import Layout
from leap.model.batches import Batch
from leap.model.encoder import Encoder, Layer

# Work space and plans kept: streams in use at once, and exit rules.
STREAMS = 4
PLANS = 64
MOST_TOKENS = 65_536


@dataclass(frozen=True)
class Placed:
    """A batch on the device, cut up for the kernel.

    ids, positions: [N] int64. owners: [N] int32, each token's row. tiles: [2, tiles + 1] int32, the tiles' first
    tokens and first rows.
    """

    ids: Tensor
    positions: Tensor
    owners: Tensor
    tiles: Tensor
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
        self.processors = _processors(self.device)
        self._weights, self._norms = _joined(encoder)
        self._work: OrderedDict[tuple[int, int], dict[str, Tensor]] = OrderedDict()
        self._plans: OrderedDict[tuple[float, ...], tuple[Tensor, Tensor]] = OrderedDict()
        self._compiled: dict[Any, Any] = {}

    def place(self, batch: Batch, layout: Layout | None = None) -> Placed:
        """Cuts a batch up and puts it on the device.

        Args:
            batch: B rows; the longest fits a tile (`fits`).
            layout: instead of the chosen one.
        """
        lengths = row_lengths(batch)
        layout = layout or choose_layout(lengths, self.config, self.processors)
        owners = [row for row, length in enumerate(lengths) for _ in range(length)]
        # One copy to the device for all three; the sections stay aligned for wide loads.
        padded = -(-len(owners) // 4) * 4
        numbers = [*owners, *[0] * (padded - len(owners)), *layout.tiling.tokens, *layout.tiling.rows]
        table = torch.tensor(numbers, dtype=torch.int32).to(self.device, non_blocking=True)
        moved = batch.to(self.device)
        return Placed(
            moved.ids, moved.positions, table, table[padded:].view(2, -1), len(lengths), layout
        )

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

    def warm_up(self, tokens: Sequence[int] | None = None) -> None:
        """Compiles the kernel for tiles of these sizes, all by default, so that no later call waits for it."""
        for shape in shapes(self.config):
            if tokens is None or shape.tokens in tokens:
                ids = torch.zeros(shape.tokens, dtype=torch.int64)
                self.full(_one_row(ids))

    def _run(
        self, batch: Batch | Placed, thresholds: tuple[float, ...], patience: int, stop: int
    ) -> tuple[Tensor, Tensor]:
        placed = self.place(batch) if isinstance(batch, Batch) else batch
        plan, limits = self._plan(thresholds, patience, stop)
        vectors = torch.empty(placed.rows, self.config.width, device=self.device)
        exits = torch.empty(placed.rows, dtype=torch.int64, device=self.device)
        work = self._workspace(len(placed.ids), placed.rows * (patience + 1))
        layout = placed.layout
        self._launch(
            layout,
            placed.ids,
            placed.positions,
            placed.owners,
            placed.tiles[0],
            placed.tiles[1],
            plan,
            limits,
            self.encoder.words.weight,
            self.encoder.places.weight,
            self.encoder.types.weight,
            self._norms,
            self._weights,
            *work.values(),
            vectors,
            exits,
            patience,
            placed.rows,
            len(work["moments"]) // 2,
            len(layout.tiling),
            layout.groups,
            layout.members,
            stop,
        )
        return vectors, exits

    def _launch(self, layout: Layout, *arguments: Any) -> None:
        from leap.exits.fused_kernel import encode_kernel  # needs triton, which CPU machines do not have

        shape, config = layout.shape, self.config
        constants = (
            config.layer_norm_eps,
            config.width,
            config.intermediate,
            config.heads,
            shape.tokens,
            shape.split,
            shape.chunk,
            shape.wide_chunk,
            shape.columns,
            shape.wide_columns,
            shape.stages,
            self.device.type != "cuda",
        )
        grid = (layout.groups * layout.members, 1, 1)
        compiled = self._compiled.get(shape)
        if compiled is None:
            # Cooperative: all programs run at once, or the launch fails; waiting for one another is safe.
            self._compiled[shape] = encode_kernel[grid](
                *arguments, *constants, num_warps=shape.warps, launch_cooperative_grid=True
            )
        else:
            compiled[grid](*arguments, *constants)

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

    def _workspace(self, tokens: int, pooled: int) -> dict[str, Tensor]:
        """The stream's own work space, which grows to what the largest batch needed."""
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        key = (self.device.index or 0, stream)
        work = self._work.get(key)
        if work is None or len(work["moments"]) // 2 < tokens or len(work["recent"]) < pooled:
            capacity = 1 << (max(tokens, 128) - 1).bit_length()
            self._work[key] = work = _work_space(self.encoder, capacity, max(pooled, 64), self.processors)
        self._work.move_to_end(key)
        while len(self._work) > STREAMS:
            self._work.popitem(last=False)
        return work


def unsupported(encoder: Encoder) -> str | None:
    """Why the fused kernel cannot compute this encoder; None where it can."""
    config, weight = encoder.config, encoder.words.weight
    head, rest = divmod(config.width, config.heads)
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"its weights are {weight.dtype}, not float16 or bfloat16"
    if rest or head not in (16, 32, 64, 128):
        return f"heads of {config.width / config.heads:g} numbers; it computes 16, 32, 64 and 128"
    if not shapes(config):
        return f"width {config.width} or {config.intermediate} is no multiple of 16"
    return None


def fits(batch: Batch) -> bool:
    """Whether the kernel takes the batch: no row longer than the largest tile, and work space for all."""
    return batch.groups[-1].length <= 128 and len(batch.ids) <= MOST_TOKENS


def row_lengths(batch: Batch) -> list[int]:
    """Each row's tokens, in the batch's order."""
    return [group.length for group in batch.groups for _ in range(group.rows)]


def plan_flags(thresholds: Sequence[float], patience: int, stop: int) -> list[int]:
    """What to do with each layer's output, index 0 the embeddings': 0 nothing, 1 pool it, 2 test it too.

    Only layers that a test needs are pooled; the layer `stop` is pooled anyway, after the last step.
    """
    tests = {layer for layer in range(patience + 1, stop) if thresholds[layer - 1] < math.inf}
    pooled = {layer - patience for layer in tests}
    return [2 if layer in tests else int(layer in pooled) for layer in range(len(thresholds) + 1)]


def _one_row(ids: Tensor) -> Batch:
    from leap.model.batches import grouped

    return Batch(ids, torch.arange(len(ids)), grouped([len(ids)]))


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _joined(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """All layers' weights in one block [L, numbers of a layer], and all norms [L + 1, 2, D].

    The encoder's own parameters become views of the block, so the weights are held once.
    """
    blocks = [torch.cat([p.data.flatten() for p in _ordered(layer)]) for layer in encoder.layers]
    weights = torch.stack(blocks)
    for block, layer in zip(weights, encoder.layers, strict=True):
        start = 0
        for parameter in _ordered(layer):
            size = parameter.numel()
            parameter.data = block[start : start + size].view_as(parameter)
            start += size
    norms = [encoder.norm, *(layer.norm for layer in encoder.layers)]
    return weights, torch.stack([torch.stack([norm.weight.data, norm.bias.data]) for norm in norms])


def _ordered(layer: Any) -> list[torch.nn.Parameter]:
    """A layer's parameters in the kernel's order; its last norm's are kept apart."""
    assert isinstance(layer, Layer)
    products = (layer.qkv, layer.attention_out, layer.up, layer.down)
    return [
        *(product.weight for product in products),
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
    numbers = {"dtype": weight.dtype, "device": weight.device}
    exact = {"dtype": torch.float32, "device": weight.device}
    parts = config.width // 16
    return {
        "states": torch.empty(tokens, config.width, **numbers),
        "middle": torch.empty(tokens, config.width, **numbers),
        "attended": torch.empty(tokens, config.width, **numbers),
        "wide": torch.empty(tokens, config.intermediate, **numbers),
        "parts": torch.empty(parts, 2, tokens, **exact),
        "middle_parts": torch.empty(parts, 2, tokens, **exact),
        "moments": torch.empty(2 * tokens, **exact),
        "middle_moments": torch.empty(2 * tokens, **exact),
        "recent": torch.empty(pooled, config.width, **exact),
        "counters": torch.zeros(processors * 16, dtype=torch.int64, device=weight.device),
    }
