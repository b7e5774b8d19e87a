"""The ways to run an encoder, and which one takes a batch on this machine."""

import logging
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from threading import RLock
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.exits.cuda import fused, graphs
from leap.exits.cuda.bursts import time_calls
from leap.exits.cuda.layouts import layout_of, longest_row
from leap.exits.cuda.tiles import TileShape
from leap.exits.forward import exit_forward
from leap.exits.plan import Plan, plan_of
from leap.exits.policy import ExitPolicy
from leap.exits.trust import disagreement, made_batch
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
from leap.models.kernels.varlen import LONGEST_TILE
from leap.models.packed_encoder import Encoder
from leap.models.walk import Walkable

log = logging.getLogger(__name__)

PathName = Literal["auto", "fused", "graphs", "eager"]

# Hopper: the fused kernel was written and measured for it.
CAPABILITY = (9, 0)
# Above, graphs are faster than the fused kernel, until `warm` measures where on this machine. On an H200 the
# kernel is faster at 120 tokens and slower at 450, at full depth and for exits (docs/log/2026-11-29.md).
FUSED_TOKENS = 320
# Blocks a tile in the comparison with the reference implementation.
MEMBERS = 8


class DisagreementError(RuntimeError):
    """A path computes something else than layer by layer."""


class FastPath(Protocol):
    """A way to run batches by a plan, faster than layer by layer."""

    name: str

    def takes(self, batch: Batch) -> bool:
        """Tell whether it computes a batch."""

    def place(self, batch: Batch, plan: Plan) -> Any:
        """Put a batch that it takes into the form in which it computes it: `run` takes that too."""

    def run(self, batch: Any, plan: Plan, heads: ExitHeads | None) -> tuple[Tensor, Tensor]:
        """Compute vectors [B, D] float32, not normalised, and exit layers [B] int64, counted from 1.

        Both are on the device, which may still be computing them.

        Args:
            batch: one that it takes, or what `place` made of it for this plan.
            plan: who leaves where.
            heads: on the device; the vectors are mapped by them.

        Raises:
            RuntimeError, ImportError, OSError: it does not work here.
        """

    def learn(self, plan: Plan, exits: Sequence[int]) -> None:
        """Learn where a batch's rows left."""

    def warm(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None) -> None:
        """Prepare for batches of so many rows of this length."""


class FusedPath:
    """One CUDA kernel a batch (`leap.exits.cuda.fused`); each of its forms is compared before its first use."""

    name = "fused"

    def __init__(self, encoder: Encoder, most_tokens: int) -> None:
        self.fused = fused.FusedEncoder(encoder)
        self.most_tokens = most_tokens
        self._trusted: set[tuple[TileShape, bool]] = set()
        self._lock = RLock()

    def takes(self, batch: Batch) -> bool:
        return fused.fits(batch, self.fused.config, self.most_tokens)

    def place(self, batch: Batch, plan: Plan) -> fused.Placed:
        return self.fused.place(batch)

    def run(self, batch: Batch | fused.Placed, plan: Plan, heads: ExitHeads | None) -> tuple[Tensor, Tensor]:
        with torch.cuda.device(self.fused.device):
            placed = self.fused.place(batch) if isinstance(batch, Batch) else batch
            self._trust(placed.layout.shape, heads)
            return self.fused.run(placed, plan, heads)

    def learn(self, plan: Plan, exits: Sequence[int]) -> None: ...

    def warm(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None) -> None:
        if length <= longest_row(self.fused.config) and rows * length <= self.most_tokens:
            with torch.cuda.device(self.fused.device):
                self._trust(self.fused.layout((length,) * rows).shape, heads)

    def _trust(self, shape: TileShape, heads: ExitHeads | None) -> None:
        form = shape, heads is not None
        with self._lock:
            if form in self._trusted:
                return
            batch = made_batch(self.fused.encoder, shape.tokens)
            layout = layout_of(batch.lengths.tolist(), shape, self.fused.processors, MEMBERS)
            placed = self.fused.place(batch, layout)
            reason = disagreement(
                lambda _, plan: self.fused.run(placed, plan, heads), self.fused.encoder, batch, heads=heads
            )
            if reason:
                raise DisagreementError(reason)
            self._trusted.add(form)


class GraphPath:
    """Layers as CUDA graphs (`leap.exits.cuda.graphs`), compared before their first use."""

    name = "graphs"

    def __init__(self, encoder: Encoder) -> None:
        self.graphs = graphs.GraphEncoder(encoder)
        self._trusted = self._trusted_heads = False
        self._lock = RLock()

    def takes(self, batch: Batch) -> bool:
        return graphs.fits(batch.rows, len(batch.ids), batch.groups[-1].length)

    def place(self, batch: Batch, plan: Plan) -> graphs.Placed:
        return self.graphs.place(batch, plan.patience)

    def run(self, batch: Batch | graphs.Placed, plan: Plan, heads: ExitHeads | None) -> tuple[Tensor, Tensor]:
        self._trust(heads)
        return self.graphs.run(batch, plan, heads)

    def learn(self, plan: Plan, exits: Sequence[int]) -> None:
        self.graphs.learn(plan, exits)

    def warm(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None) -> None:
        self._trust(heads)
        if graphs.fits(rows, rows * length, length):
            self.graphs.warm(rows, length, plan, heads)

    def _trust(self, heads: ExitHeads | None) -> None:
        with self._lock:
            if not self._trusted:
                # Every look and every move of the host is compared, every look of the device, and both.
                for self.graphs.always, self.graphs.alone in ((True, False), (False, True), (True, True)):
                    try:
                        self._compare(None)
                    finally:
                        self.graphs.always = self.graphs.alone = False
                self.graphs.measure_costs()
                self._trusted = True
            if heads is not None and not self._trusted_heads:
                self._compare(heads)
                self._trusted_heads = True

    def _compare(self, heads: ExitHeads | None) -> None:
        encoder = self.graphs.encoder
        batch = made_batch(encoder, LONGEST_TILE)
        reason = disagreement(partial(self.graphs.run, heads=heads), encoder, batch, times=3, heads=heads)
        if reason:
            raise DisagreementError(reason)


class Paths:
    """An encoder's fast paths, best first, and layer by layer for what none of them takes."""

    def __init__(self, encoder: Walkable, wanted: PathName = "auto") -> None:
        """Find the paths for the encoder on its device; the log says which and why.

        Args:
            encoder: its weights stay where they are.
            wanted: auto for all that work here; else that one, and `eager` for what it does not take.

        Raises:
            UserError: the one that is wanted does not work here.
        """
        self.encoder, self.wanted = encoder, wanted
        self._weights = encoder.weight.data_ptr(), encoder.weight.dtype
        self.eager = f"{encoder.weight.device.type} eager"
        self.fast, reasons = _fast_paths(encoder, wanted)
        self._warned: set[str] = set()
        if wanted in reasons:
            raise UserError(f'path="{wanted}" does not work here: {reasons[wanted]}; use path="auto"')
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        log.info("exit path: %s%s", self.names(), f" ({why})" if why else "")

    def moved(self) -> bool:
        """Tell whether the weights are elsewhere than when these paths were tried."""
        return (self.encoder.weight.data_ptr(), self.encoder.weight.dtype) != self._weights

    def names(self) -> str:
        return ", then ".join([*(path.name for path in self.fast), self.eager])

    def exits(
        self,
        batch: Batch,
        policy: ExitPolicy,
        similarities: dict[int, Tensor] | None = None,
        heads: ExitHeads | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute as `leap.exits.forward.exit_forward`, by the first path that takes the batch.

        The vectors are mapped by the exit heads, where some are given.
        """
        plan = None if similarities is not None else plan_of(policy, self.encoder.config.layers)
        if plan is None:
            kind = type(policy).__name__ if similarities is None else "a monitor"
            self._tell(kind, f"{kind} needs every layer's pooled vectors")
        else:
            for path in self.fast:
                if path.takes(batch):
                    try:
                        vectors, layers = path.run(batch, plan, heads)
                        exits = layers.cpu()
                        path.learn(plan, exits.tolist())
                    except torch.OutOfMemoryError:
                        raise
                    except (RuntimeError, ImportError, OSError) as error:
                        self._refuse(path, error)
                    else:
                        return vectors, exits
            longest = batch.groups[-1].length
            self._tell("size", f"{batch.rows} rows of up to {longest} tokens fit no other")
        vectors, exits = exit_forward(self.encoder, batch, policy, similarities)
        return vectors if heads is None else heads.at_exits(vectors, exits), exits

    def warm(self, rows: int, length: int, policy: ExitPolicy, heads: ExitHeads | None = None) -> None:
        """Compile, compare and capture what batches of so many rows of this length need; see `exits`."""
        plan = plan_of(policy, self.encoder.config.layers)
        if plan is None:
            return
        for path in self.fast:
            try:
                path.warm(rows, length, plan, heads)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ImportError, OSError) as error:
                self._refuse(path, error)
        self._set_border(rows, length, plan, heads)

    def _set_border(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None) -> None:
        """Time both fast paths on batches of so many rows and tokens: the faster one takes them from now on."""
        tokens = rows * length
        paths = {path.name: path for path in self.fast}
        fused_path, graph_path = paths.get("fused"), paths.get("graphs")
        if not isinstance(fused_path, FusedPath) or not isinstance(graph_path, GraphPath):
            return
        batch = pack([[self.encoder.config.pad_token] * length] * rows).to(self.encoder.weight.device)
        if not fused.fits(batch, fused_path.fused.config) or not graph_path.takes(batch):
            return
        both: tuple[FastPath, ...] = fused_path, graph_path
        by_kernel, by_graphs = time_calls(
            *(partial(path.run, path.place(batch, plan), plan, heads) for path in both)
        )
        if by_kernel <= by_graphs:
            fused_path.most_tokens = max(fused_path.most_tokens, tokens)
        else:
            fused_path.most_tokens = min(fused_path.most_tokens, tokens - 1)
        log.info(
            "exit path: %d rows of %d tokens take %.3f ms fused and %.3f ms by graphs: up to %d tokens are fused",
            *(rows, length, by_kernel, by_graphs, fused_path.most_tokens),
        )

    def _refuse(self, path: FastPath, error: Exception) -> None:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if self.wanted == path.name:
            raise UserError(f'path="{path.name}" does not work here: {reason}; use path="auto"') from error
        self.fast = tuple(other for other in self.fast if other is not path)
        log.warning("exit path %s is not used any more (%s): now %s", path.name, reason, self.names())

    def _tell(self, kind: str, reason: str) -> None:
        if self.fast and kind not in self._warned:
            self._warned.add(kind)
            log.info("exit path: a batch runs by %s, because %s", self.eager, reason)


def check_name(path: str) -> None:
    if path not in get_args(PathName):
        raise ValueError(f"path {path!r} is none of {', '.join(get_args(PathName))}")


def _fast_paths(encoder: Walkable, wanted: PathName) -> tuple[tuple[FastPath, ...], dict[str, str]]:
    """Those that work here, and why others do not."""
    asked = ("fused", "graphs") if wanted == "auto" else (wanted,)
    if wanted == "eager":
        return (), {}
    if not isinstance(encoder, Encoder):
        return (), dict.fromkeys(asked, "transformers computes this model's layers")
    device = encoder.weight.device
    if device.type != "cuda":
        return (), dict.fromkeys(asked, f"the model is on {device.type}")
    why = {"fused": why_not_fused, "graphs": graphs.unsupported}
    reasons = {name: reason for name in asked if (reason := why[name](encoder))}
    paths: list[FastPath] = []
    if "fused" in asked and "fused" not in reasons:
        others = "graphs" in asked and "graphs" not in reasons
        paths.append(FusedPath(encoder, FUSED_TOKENS if others else fused.MOST_TOKENS))
    if "graphs" in asked and "graphs" not in reasons:
        paths.append(GraphPath(encoder))
    return tuple(paths), reasons


def why_not_fused(encoder: Encoder) -> str | None:
    """Say why an encoder on CUDA cannot run as one kernel here; None where it can."""
    capability = torch.cuda.get_device_capability(encoder.words.weight.device)
    if capability < CAPABILITY:
        return "it needs compute capability 9.0; this card has {}.{}".format(*capability)
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "the package cuda-bindings, which compiles it, is not installed"
    return fused.unsupported(encoder)
