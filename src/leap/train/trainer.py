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

from leap.core.errors import UserError
from leap.core.progress import bar
from leap.core.settings.training import TrainSettings
from leap.models.kernels import varlen
from leap.models.packed_encoder import Encoder, compile_layers
from leap.models.reference import ReferenceEncoder
from leap.train.captured import WARM_UP, WARM_UP_SHARED, CapturedStep
from leap.train.objective import Objective
from leap.train.ranks import ALONE, Ranks
from leap.train.step import Distillation, Step, StepInput, Update, adamw
from leap.train.teacher import Teacher
from leap.train.tokens import Rows, TokenizedText, epoch_batches
from leap.train.training_state import TrainingState

log = logging.getLogger(__name__)

Line = dict[str, float]


class Trainer:
    """Trains a student on a teacher's vectors; stops cleanly, and goes on where it stopped.

    One loop for a CPU, a GPU and several: on a GPU rows are packed into batches of one size, layers and loss
    are compiled, and the whole step is a CUDA graph; each of several processes takes its share of every
    batch.
    """

    def __init__(
        self,
        encoder: Encoder | ReferenceEncoder,
        loss: Objective,
        settings: TrainSettings,
        text: TokenizedText,
        sentences: Sequence[str],
        teacher: Teacher,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        """Prepare the training.

        Args:
            encoder: the started student, trained in place.
            loss: the objective, whose projection is trained too.
            settings: epochs, batch size (of all processes together), learning rate.
            text: the sentences as tokens of the student's tokenizer.
            sentences: the same sentences, to name them in an error.
            teacher: their vectors.
            seed: of the order of the batches.

        Raises:
            UserError: the processes cannot share a batch evenly.
        """
        self.settings, self.text, self.sentences = settings, text, sentences
        self.teacher, self.seed, self.device, self.ranks = teacher, seed, device, ranks
        # Packed batches have one size, and rows of all lengths make them alike in tokens.
        narrow = settings.precision == "bf16"
        self.packed = varlen.available(device) and narrow and encoder.packs and teacher.packs
        self.mixed = self.fixed = self.packed
        self.module = Distillation(encoder, loss, teacher.layers).to(device)
        self.optimizer = adamw(self.module, settings, device)
        self._rows = min(settings.batch_size, len(text))
        if self._rows % ranks.world:
            raise UserError(
                f"train.batch_size: batches of {self._rows} sentences cannot be shared evenly by "
                f"{ranks.world} processes"
            )
        self.steps = settings.epochs * (len(text) // self._rows)
        self._noted: list[tuple[int, Rows, Tensor]] = []

    def train(self, state: TrainingState, on_line: Callable[[int, Line], None]) -> list[dict[str, Any]]:
        """Run to the end, from the saved state if there is one.

        Args:
            state: where to save and what to go on from.
            on_line: called with the step and the figures of every logged step, in the first process.

        Returns:
            The history, a line a logged step.

        Raises:
            UserError: a loss is not finite.
            KeyboardInterrupt: SIGINT or SIGTERM came; the state is saved.
        """
        done, history = state.restore(self.module, self.optimizer)
        update, terms = self.prepare(log_start=done == 0)
        quiet = not self.ranks.first
        with (
            _flush_denormals(),
            _note_signals() as noted,
            bar(total=self.steps, initial=done, unit="step", disable=quiet) as progress,
        ):
            clock = _Clock()
            for step, rows in self.batches(done):
                self._noted.append((step, rows, update(self.inputs(step, rows))))
                clock.sentences += len(rows) * self.ranks.world
                progress.update()
                if step % self.settings.log_every == 0 or step == self.steps:
                    history.append(self._read(terms) | {"sentences_per_second": clock.rate()})
                    progress.set_postfix(loss=f"{history[-1]['loss']:.4f}", refresh=False)
                    if self.ranks.first:
                        on_line(step, history[-1])
                stop = self.ranks.any(bool(noted))
                if stop or step % self.settings.checkpoint_every == 0:
                    if self._noted:  # nothing that is not finite is saved
                        self._read(terms)
                    if self.ranks.first:
                        state.save(self.module, self.optimizer, step, history)
                if stop:
                    log.warning("saved at step %d of %d", step, self.steps)
                    raise KeyboardInterrupt
        return history

    def batches(self, done: int = 0) -> Iterator[tuple[int, Rows]]:
        """Yield the remaining batches with their step, counted from 1, and this process's rows of them."""
        step, world = 0, self.ranks.world
        for epoch in range(self.settings.epochs):
            for rows in epoch_batches(self.text.lengths, self._rows, self.seed, epoch, self.mixed):
                step += 1
                if step > done:
                    yield step, rows[self.ranks.rank :: world]

    def _reserve(self) -> None:
        batches = [rows for _, rows in self.batches()]
        self._tokens, self._longest = self.text.largest(batches), int(self.text.lengths.max())
        self.teacher.reserve(batches)

    def inputs(self, step: int, rows: Rows) -> StepInput:
        """Return what the update needs of a batch, on the device or on its way there."""
        batch = self.text.packed(rows, self._tokens, self._longest) if self.packed else self.text.batch(rows)
        given = StepInput(
            batch,
            self.teacher.inputs(rows, fixed=self.fixed),
            torch.tensor((step - 1) / self.steps),
            torch.tensor(learning_rate_at(step, self.steps, self.settings)),
        )
        if self.device.type == "cpu":
            return given
        return given.map(lambda part: part.pin_memory().to(self.device, non_blocking=True))

    def prepare(self, log_start: bool = False) -> tuple[Update, list[str]]:
        """Return the update as this device runs it best, and the terms' names, which its first call fills in."""
        if self.fixed:
            self._reserve()
        if log_start:
            self._log_start()
        compiled = self.packed and self.settings.compile and self.module.loss.captures
        if compiled:
            assert isinstance(self.module.encoder, Encoder)  # the reference packs nothing
            compile_layers(self.module.encoder)
            self.module.loss.compile(dynamic=False)
            self.teacher.compile()
        if not compiled:
            log.info("the step runs kernel by kernel, not compiled, in %d process(es)", self.ranks.world)
            step = Step(self._share_gradients(), self.optimizer, self.teacher, self.settings)
            return step, step.terms
        log.info("the step is compiled and one CUDA graph, in %d process(es)", self.ranks.world)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            module = self._share_gradients()
        torch.cuda.current_stream().wait_stream(stream)
        step = Step(module, self.optimizer, self.teacher, self.settings)
        warm_up = WARM_UP if self.ranks.world == 1 else WARM_UP_SHARED
        return CapturedStep(step, stream, warm_up), step.terms

    def _share_gradients(self) -> nn.Module:
        """The module, its gradients averaged over the processes where there are several."""
        if self.ranks.world == 1:
            return self.module
        # Buffers are constants, which every process makes for itself.
        return nn.parallel.DistributedDataParallel(
            self.module, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def _read(self, terms: list[str]) -> Line:
        """The figures of the last step, once all steps since the last reading are seen to be finite."""
        values = torch.stack([values for _, _, values in self._noted]).cpu()
        here = ~torch.isfinite(values).all(1)
        if self.ranks.any(bool(here.any())):
            place = int(here.int().argmax()) if here.any() else -1
            raise UserError(self._not_finite(*self._noted[place][:2], values[place], terms))
        step = self._noted[-1][0]
        self._noted.clear()
        loss, norm, *parts = self.ranks.mean(values[-1]).tolist()
        return {
            "step": step,
            "epoch": step * self.settings.epochs / self.steps,
            "learning_rate": learning_rate_at(step, self.steps, self.settings),
            "grad_norm": norm,
            "loss": loss,
            **{f"loss_{name}": value for name, value in zip(terms, parts, strict=True)},
        }

    def _not_finite(self, step: int, rows: Rows, values: Tensor, terms: list[str]) -> str:
        names = ["sum", "gradient", *terms]
        bad = [name for name, value in zip(names, values, strict=True) if not torch.isfinite(value)]
        named = [name for name in bad if name in terms] or bad or ["of another process"]
        quoted = "; ".join(self.sentences[row][:80] for row in rows[:3])
        return (
            f"the loss is not finite at step {step} (term {', '.join(named)}), in the batch that begins "
            f"with: {quoted}. Lower train.learning_rate (leap retrofit: --learning-rate), or raise loss.tau_c"
        )

    @torch.no_grad()
    def _log_start(self) -> None:
        """Log how far each layer is from the last before training, and how many the margin cannot reach."""
        _, rows = next(self.batches())
        batch = self.inputs(1, rows).batch
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            pooled = self.module.encoder(batch)
        similarity = F.cosine_similarity(pooled[1:].float(), pooled[-1:].float(), dim=-1)
        log.info(
            "at the start: similarity to the final layer by layer %s; %.0f %% of sentence layers in the "
            "sigmoid's dead zone (below 0.5)",
            " ".join(f"{value:.2f}" for value in similarity.mean(1).tolist()),
            100 * float((similarity < 0.5).float().mean()),
        )


class _Clock:
    """Sentences a second since the last reading, at which the device has done all its work."""

    def __init__(self) -> None:
        self.sentences, self._since = 0, time.perf_counter()

    def rate(self) -> float:
        now = time.perf_counter()
        rate, self.sentences, self._since = self.sentences / (now - self._since), 0, now
        return rate


def learning_rate_at(step: int, steps: int, settings: TrainSettings) -> float:
    """Return linear warm-up, then a cosine to zero (paper, Table of hyperparameters); steps counted from 1."""
    warm = settings.warmup * steps
    if step <= warm:
        return settings.learning_rate * step / warm
    share = (step - warm) / max(1.0, steps - warm)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


@contextmanager
def _flush_denormals() -> Iterator[None]:
    """Round numbers near the smallest to 0: a CPU takes a hundred times as long for them."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _note_signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying in the middle of a step; a second one ends at once."""
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
