"""One step of the training: from a batch to changed weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leap.core.settings.training import TrainSettings
from leap.models.batches import Batch
from leap.models.packed_encoder import Encoder
from leap.models.reference import ReferenceEncoder
from leap.train.objective import Objective
from leap.train.teacher import Teacher, TeacherInput

Update = Callable[["StepInput"], Tensor]


@dataclass(frozen=True)
class StepInput:
    """A step's input, on the device.

    batch: the student's tokens. teacher: what `Teacher.vectors` turns into targets.
    progress: share of the training done, and rate: the learning rate, 0-dimensional float32 tensors.
    """

    batch: Batch
    teacher: TeacherInput
    progress: Tensor
    rate: Tensor

    def tensors(self) -> list[Tensor]:
        teacher = self.teacher
        parts = [teacher] if isinstance(teacher, Tensor) else [*_of(teacher.batch), teacher.places]
        return [self.progress, self.rate, *_of(self.batch), *parts]

    def map(self, change: Callable[[Tensor], Tensor]) -> "StepInput":
        teacher = change(self.teacher) if isinstance(self.teacher, Tensor) else self.teacher.map(change)
        return StepInput(self.batch.map(change), teacher, change(self.progress), change(self.rate))


def _of(batch: Batch) -> list[Tensor]:
    return [part for part in (batch.ids, batch.positions, batch.offsets) if part is not None]


class Distillation(nn.Module):
    """The student and its loss as one module: what is optimised, saved, and wrapped for several processes."""

    def __init__(self, encoder: Encoder | ReferenceEncoder, loss: Objective, teacher_layers: list[int]) -> None:
        super().__init__()
        self.encoder, self.loss, self.teacher_layers = encoder, loss, teacher_layers

    def forward(
        self, batch: Batch, teacher: Tensor, progress: Tensor, precision: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        device = batch.ids.device.type
        narrow = precision == "bf16"
        with torch.autocast(device, torch.bfloat16, enabled=narrow, cache_enabled=False):
            pooled = self.encoder(batch)
        loss: tuple[Tensor, dict[str, Tensor]] = self.loss(pooled, teacher, self.teacher_layers, progress)
        return loss


class Step:
    """Forward, backward, clipping and update of one batch, without waiting for the device."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, teacher: Teacher, settings: TrainSettings
    ) -> None:
        self.module, self.optimizer, self.teacher, self.settings = module, optimizer, teacher, settings
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.terms: list[str] = []

    def __call__(self, given: StepInput) -> Tensor:
        """Change the weights.

        Returns:
            [2 + terms] float32: the loss, the gradient's norm, then the terms in the order of `terms`.
        """
        self.optimizer.zero_grad()
        targets = self.teacher.vectors(given.teacher)
        total, parts = self.module(given.batch, targets, given.progress, self.settings.precision)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = given.rate if isinstance(group["lr"], Tensor) else float(given.rate)
        self.optimizer.step()
        self.terms[:] = parts
        return torch.stack([total.detach(), norm.detach(), *parts.values()]).float()


def adamw(module: nn.Module, settings: TrainSettings, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW over a module's parameters; biases and norms are not decayed, as is usual for BERT."""
    trained = [p for p in module.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.ndim >= 2]
    plain = [p for p in trained if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if device.type == "cuda":
        # The rate is a tensor on the device, so that a captured step reads each step's own.
        rate = torch.tensor(settings.learning_rate, device=device)
        return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
