"""The training loop."""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leap.errors import UserError
from leap.model.encoder import Encoder
from leap.objective import Objective
from leap.progress import bar
from leap.settings.student import TrainSettings
from leap.teacher import TeacherCache
from leap.training.checkpoint import TrainingState
from leap.training.tokens import Rows, TokenizedText, epoch_batches

log = logging.getLogger(__name__)

Line = dict[str, float]


class Trainer:
    """Trains a student on cached teacher vectors; stops cleanly, and goes on where it stopped."""

    def __init__(
        self,
        encoder: Encoder,
        loss: Objective,
        settings: TrainSettings,
        text: TokenizedText,
        sentences: Sequence[str],
        teacher: TeacherCache,
        seed: int,
        device: torch.device,
    ) -> None:
        """Prepares the training.

        Args:
            encoder: the started student, trained in place.
            loss: the objective, whose projection is trained too.
            settings: epochs, batch size, learning rate.
            text: the sentences as tokens of the student's tokenizer.
            sentences: the same sentences, to name them in an error.
            teacher: their cached vectors.
            seed: of the order of the batches.
            device: where to compute.
        """
        self.encoder, self.loss, self.settings = encoder.to(device), loss.to(device), settings
        self.text, self.sentences, self.teacher = text, sentences, teacher
        self.seed, self.device = seed, device
        self.module = nn.ModuleDict({"encoder": encoder, "loss": loss})
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(self.module, settings.weight_decay), lr=settings.learning_rate, fused=True
        )
        self.steps = settings.epochs * len(epoch_batches(text.lengths, settings.batch_size, seed, 0))

    def train(self, state: TrainingState, on_line: Callable[[int, Line], None]) -> list[dict[str, Any]]:
        """Runs to the end, from the saved state if there is one.

        Args:
            state: where to save and what to go on from.
            on_line: called with the step and the figures of every logged step.

        Returns:
            The history, a line a logged step.

        Raises:
            UserError: a loss is not finite.
            KeyboardInterrupt: SIGINT or SIGTERM came; the state is saved.
        """
        torch.set_flush_denormal(True)
        done, history = state.restore(self.module, self.optimizer)
        self.encoder.train()
        started, sentences_seen = time.perf_counter(), 0
        with _signals_noted() as noted, bar(total=self.steps, initial=done, unit="step") as progress:
            for step, rows in self._batches(done):
                parts = self._step(step, rows)
                sentences_seen += len(rows)
                progress.update()
                if step % self.settings.log_every == 0 or step == self.steps:
                    line = {
                        "step": step,
                        "epoch": step * self.settings.epochs / self.steps,
                        **{name: float(value) for name, value in parts.items()},
                        "sentences_per_second": sentences_seen / (time.perf_counter() - started),
                    }
                    history.append(line)
                    progress.set_postfix(loss=f"{line['loss']:.4f}")
                    on_line(step, line)
                if noted or step % self.settings.checkpoint_every == 0:
                    state.save(self.module, self.optimizer, step, history)
                if noted:
                    log.warning("saved at step %d of %d", step, self.steps)
                    raise KeyboardInterrupt
        self.encoder.eval()
        return history

    def _batches(self, done: int) -> Iterator[tuple[int, Rows]]:
        """The remaining batches with their step, counted from 1."""
        step = 0
        for epoch in range(self.settings.epochs):
            for rows in epoch_batches(self.text.lengths, self.settings.batch_size, self.seed, epoch):
                step += 1
                if step > done:
                    yield step, rows

    def _step(self, step: int, rows: Rows) -> dict[str, Tensor | float]:
        batch = self.text.batch(rows).to(self.device)
        teacher = self.teacher.rows(rows).to(self.device)
        rate = learning_rate_at(step, self.steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            pooled = self.encoder(batch)
        if step == 1:
            _log_start(pooled)
        total, parts = self.loss(pooled, teacher, self.teacher.layers, (step - 1) / self.steps)
        if not torch.isfinite(total):
            raise UserError(self._not_finite(step, parts, rows))
        self.optimizer.zero_grad()
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        return {
            "learning_rate": rate,
            "grad_norm": norm,
            "loss": total.detach(),
            **{f"loss_{name}": value for name, value in parts.items()},
        }

    def _not_finite(self, step: int, parts: dict[str, Tensor], rows: Rows) -> str:
        bad = [name for name, value in parts.items() if not torch.isfinite(value)] or ["sum"]
        quoted = "; ".join(self.sentences[row][:80] for row in rows[:3])
        return (
            f"the loss is not finite at step {step} (term {', '.join(bad)}), in the batch that begins with: "
            f"{quoted}. Lower train.learning_rate, or raise loss.tau_c"
        )


def learning_rate_at(step: int, steps: int, settings: TrainSettings) -> float:
    """Linear warm-up, then a cosine to zero (paper, Table of hyperparameters); steps counted from 1."""
    warm = settings.warmup * steps
    if step <= warm:
        return settings.learning_rate * step / warm
    share = (step - warm) / max(1.0, steps - warm)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def _parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    # Biases and norms are not decayed, as is usual for BERT.
    decayed = [p for p in module.parameters() if p.ndim >= 2]
    plain = [p for p in module.parameters() if p.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def _log_start(pooled: Tensor) -> None:
    """How far each layer is from the last before training, and how many the sigmoid margin cannot reach."""
    similarity = F.cosine_similarity(pooled[1:].detach().float(), pooled[-1:].detach().float(), dim=-1)
    layers = similarity.mean(1).tolist()
    log.info(
        "at the start: similarity to the final layer by layer %s; %.0f %% of sentence layers in the "
        "sigmoid's dead zone (below 0.5)",
        " ".join(f"{value:.2f}" for value in layers),
        100 * float((similarity < 0.5).float().mean()),
    )


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Notes SIGINT and SIGTERM instead of dying in the middle of a step; a second one ends at once."""
    noted: list[int] = []

    def note(number: int, _: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
