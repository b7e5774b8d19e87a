"""The ways to run an encoder, and which one fits it and the machine."""

import logging
import math
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from leap.exits.forward import exit_forward, layer_forward
from leap.exits.fused import FusedEncoder, fits, unsupported
from leap.exits.rules import ExitRule
from leap.model.batches import Batch
from leap.model.encoder import Encoder

logger = logging.getLogger(__name__)

# Hopper: the kernel's copies and launch need it.
CAPABILITY = (9, 0)


class Path(Protocol):
    """A way to run an encoder: `leap.exits.forward`'s two functions."""

    name: str

    def exit(self, batch: Batch, rule: ExitRule) -> tuple[Tensor, Tensor]:
        """Algorithm 1: vectors [B, D] float32 and exit layers [B] int64."""

    def at(self, batch: Batch, layer: int) -> Tensor:
        """One layer's vectors, [B, D] float32."""


class EagerPath:
    """PyTorch's own operations, layer by layer; the slow twin of all others."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name = f"{encoder.words.weight.device.type} eager"

    def exit(self, batch: Batch, rule: ExitRule) -> tuple[Tensor, Tensor]:
        """Algorithm 1; the exit layers are on the CPU."""
        return exit_forward(self.encoder, batch, rule)

    def at(self, batch: Batch, layer: int) -> Tensor:
        """One layer's vectors."""
        return layer_forward(self.encoder, batch, layer)


class FusedPath:
    """One CUDA kernel a batch; batches that it does not take run eagerly."""

    name = "cuda fused"

    def __init__(self, encoder: Encoder) -> None:
        self.fused = FusedEncoder(encoder)
        self.eager = EagerPath(encoder)
        self._told = False

    def exit(self, batch: Batch, rule: ExitRule) -> tuple[Tensor, Tensor]:
        """Algorithm 1; the exit layers are on the CPU, so this waits for them."""
        if not self._takes(batch):
            return self.eager.exit(batch, rule)
        vectors, exits = self.fused.exit(batch, thresholds(rule, self.fused.config.layers), rule.patience)
        return vectors, exits.cpu()

    def at(self, batch: Batch, layer: int) -> Tensor:
        """One layer's vectors."""
        return self.fused.at(batch, layer) if self._takes(batch) else self.eager.at(batch, layer)

    def _takes(self, batch: Batch) -> bool:
        taken = fits(batch, self.fused.config)
        if not taken and not self._told:
            self._told = True
            logger.info(
                "a batch of %d tokens with rows of up to %d runs eagerly: it does not fit the fused kernel",
                len(batch.ids),
                batch.groups[-1].length,
            )
        return taken


def thresholds(rule: ExitRule, depth: int) -> list[float]:
    """The rule as a threshold a layer; infinity where no row may leave."""
    return [math.inf if layer < rule.first_check() else rule.threshold for layer in range(1, depth + 1)]


def choose_path(encoder: Encoder) -> Path:
    """The fastest way for this encoder on its device; the log says which and why."""
    reason = why_not_fused(encoder)
    path: Path = EagerPath(encoder) if reason else FusedPath(encoder)
    logger.info("exit path: %s%s", path.name, f" ({reason})" if reason else "")
    return path


def why_not_fused(encoder: Encoder) -> str | None:
    """Why the encoder cannot run as one CUDA kernel here; None where it can."""
    device = encoder.words.weight.device
    if device.type != "cuda":
        return f"the model is on {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        return "the fused kernel needs compute capability 9.0; this card has {}.{}".format(*capability)
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "the package cuda-bindings, which compiles the fused kernel, is not installed"
    return unsupported(encoder)
