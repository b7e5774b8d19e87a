"""Training throughput on this machine, next to the usual ways in the same run.

    make bench                                   # after make demo, whose data, teacher and settings it uses
    python tools/benchmark_training.py --variant leap --steps 200 --output results/DATE-CARD/training.json
    torchrun --standalone --nproc-per-node 2 tools/benchmark_training.py --ways ours      # two GPUs

ours: the project's step, as `stages/train.py` runs it on this device.
plain: a Hugging Face BertModel on padded random batches with the same loss and teacher, eager.
sentence_transformers: its own trainer with MSELoss to the teacher's vectors (final layer only, less work).
Each drops its first steps. peak_share: floating-point operations of the matrix products (6 x the student's
layer weights a token, and 2 x the teacher's where it runs online) over those of a large product here.
The last line is one JSON object. On a CPU read the ratios; absolute figures are this machine's.
"""

import argparse
import itertools
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leap.core.environment import card_name, cpu_name, environment
from leap.core.errors import UserError
from leap.core.files import write_json
from leap.core.progress import log_to_stderr
from leap.core.settings import VariantSettings, read_settings
from leap.core.settings.sources import ModelSource
from leap.data.sentence_file import read_sentences
from leap.exits import LeapEncoder
from leap.models.batches import Batch
from leap.models.device import resolve_device
from leap.models.locate import locate
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.models.tokenizer import SentenceTokenizer
from leap.train.objective import objective
from leap.train.ranks import Ranks, join_processes
from leap.train.student import save_student, start_student, student_tokenizer_folder
from leap.train.teacher import OnlineTeacher, Teacher, open_teacher
from leap.train.tokens import Rows, TokenizedText
from leap.train.trainer import Trainer

log = logging.getLogger("leap.benchmarks")
# More than the calls before a step of several processes is captured.
WARM_UP = 16


class PaddedBert(nn.Module):
    """`BertModel` on padded batches: what a team without our encoder would train."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig(**encoder.config.hugging_face()), add_pooling_layer=False)
        self.packs = encoder.packs

    def forward(self, batch: Batch) -> Tensor:
        """Every layer's pooled vectors, [L + 1, B, D]."""
        lengths = torch.tensor([group.length for group in batch.groups for _ in range(group.rows)])
        mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).to(batch.ids.device)
        ids = torch.zeros_like(mask, dtype=torch.int64)
        ids[mask] = batch.ids
        states = self.bert(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1)
        return torch.stack([(weights.to(layer.dtype) @ layer).squeeze(1).float() for layer in states])


class Bench:
    """One variant's training, measured in several ways on the same sentences."""

    def __init__(self, variant: VariantSettings, source: ModelSource, device: torch.device, ranks: Ranks) -> None:
        self.variant, self.device, self.ranks = variant, ranks.device(device), ranks
        self.located = locate(source)
        self.sentences = read_sentences(Path("data/sentences.parquet"))
        self.tokenizer_folder = student_tokenizer_folder(variant.student, self.located.folder)
        tokenizer = SentenceTokenizer(self.tokenizer_folder, variant.train.max_length)
        self.text = TokenizedText.cached(Path("data/tokens"), self.sentences, tokenizer)
        self.counts = self.text.counts(tokenizer.vocabulary)

    def teacher(self) -> Teacher:
        """The teacher as the pipeline prepared it."""
        precision = self.variant.train.precision
        return open_teacher(Path("data/teacher"), self.sentences, self.located, self.device, precision)

    def ours(self, steps: int) -> dict[str, float]:
        """Our step."""
        return self._timed(self._trainer(lambda encoder: encoder), steps)

    def plain(self, steps: int) -> dict[str, float]:
        """The plain loop: padded batches of whatever lengths come, kernel by kernel."""
        trainer = self._trainer(PaddedBert)
        trainer.packed = False
        trainer.mixed = True
        return self._timed(trainer, steps)

    def sentence_transformers(self, steps: int) -> dict[str, float]:
        """sentence-transformers' trainer with MSELoss to the teacher's final vectors."""
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
        from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
        from sentence_transformers.losses import MSELoss
        from transformers import TrainerCallback

        student, size = self.variant.student, self.variant.train.batch_size
        rows = np.random.default_rng(0).permutation(len(self.text))[: (steps + WARM_UP) * size]
        labels = self._targets(rows)[:, : student.width]
        marks: list[float] = []
        device = self.device

        class Clock(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                if len(marks) in (WARM_UP - 1, steps + WARM_UP - 1):
                    marks.append(synchronised(device))
                else:
                    marks.append(0.0)

        data = Dataset.from_dict({"sentence": [self.sentences[row] for row in rows], "label": labels.tolist()})
        with tempfile.TemporaryDirectory() as folder:
            encoder, _ = start_student(student, self.located.folder, self.counts, 1)
            path = Path(folder) / "student"
            path.mkdir()
            save_student(encoder, path, self.tokenizer_folder, self.variant.train.max_length)
            model = SentenceTransformer(str(path), device=str(device))
            arguments = Arguments(
                folder,
                max_steps=steps + WARM_UP,
                per_device_train_batch_size=size,
                bf16=self.variant.train.precision == "bf16",
                use_cpu=device.type == "cpu",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            SentenceTransformerTrainer(model, arguments, data, loss=MSELoss(model), callbacks=[Clock()]).train()
        seconds = marks[-1] - marks[WARM_UP - 1]
        return self._rates(steps * size / seconds, seconds / steps)

    def teacher_alone(self, steps: int) -> dict[str, float]:
        """The teacher's own pass over the same batches, as it runs online."""
        manifest = json.loads(Path("data/teacher/manifest.json").read_text())
        precision = self.variant.train.precision
        teacher = OnlineTeacher(
            self.located, self.sentences, manifest, self.device, precision, Path("data/tokens")
        )
        trainer = self._trainer(lambda encoder: encoder)
        batches = [rows for _, rows in itertools.islice(trainer.batches(), steps + WARM_UP)]
        teacher.reserve(batches)
        if trainer.packed:
            teacher.compile()
        started = 0.0
        for step, rows in enumerate(batches):
            if step == WARM_UP:
                started = synchronised(self.device)
            given = teacher.inputs(rows, fixed=trainer.packed)
            teacher.vectors(given.map(lambda part: part.to(self.device, non_blocking=True)))
        seconds = synchronised(self.device) - started
        done = len(batches) - WARM_UP
        return self._rates(done * len(batches[0]) / seconds, seconds / done)

    def _targets(self, rows: Rows) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """The teacher's final vectors of some sentences, [N, D_t]."""
        encoder = LeapEncoder(self.located.folder, str(self.device))
        vectors: np.ndarray[Any, np.dtype[np.float32]] = encoder.encode(
            [self.sentences[row] for row in rows], batch_size=256, strategy="full"
        )
        return vectors

    def _trainer(self, wrap: Callable[[Any], nn.Module]) -> Trainer:
        variant, teacher = self.variant, self.teacher()
        encoder, _ = start_student(variant.student, self.located.folder, self.counts, 1)
        shape = variant.student.layers, variant.student.width, teacher.width
        loss = objective(variant.loss, *shape, self.ranks.gather)
        model: Any = wrap(encoder)
        given = variant.train, self.text, self.sentences, teacher, 1, self.device, self.ranks
        return Trainer(model, loss, *given)

    def _timed(self, trainer: Trainer, steps: int) -> dict[str, float]:
        update, _ = trainer.prepare()
        started, done, size = 0.0, 0, trainer.settings.batch_size
        for step, rows in trainer.batches():
            if step == WARM_UP + 1:
                started = synchronised(self.device)
            update(trainer.inputs(step, rows))
            done = step - WARM_UP
            if done == steps:
                break
        if done <= 0:
            raise UserError(f"the text has no more than {WARM_UP} batches: lower train.batch_size")
        seconds = synchronised(self.device) - started
        return self._rates(done * size / seconds, seconds / done)

    def _rates(self, rate: float, step: float) -> dict[str, float]:
        return {
            "sentences_per_second": round(rate, 1),
            "tokens_per_second": round(rate * float(self.text.lengths.mean()), 1),
            "ms_per_step": round(1e3 * step, 2),
        }

    def operations(self) -> float:
        """Floating-point operations of the matrix products a token, forward and backward."""
        student = self.variant.student
        layer = 4 * student.width**2 + 2 * student.width * student.intermediate
        online = json.loads(Path("data/teacher/manifest.json").read_text()).get("online", False)
        config = EncoderConfig.load(self.located.folder)
        theirs = config.layers * (4 * config.width**2 + 2 * config.width * config.intermediate)
        return 6.0 * student.layers * layer + (2.0 * theirs if online else 0.0)


def peak(device: torch.device) -> float:
    """Floating-point operations a second of a large product: bf16 on CUDA, float32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(10):
        started = synchronised(device)
        left @ right
        best = max(best, 2.0 * size**3 / (synchronised(device) - started))
    return best


def synchronised(device: torch.device) -> float:
    """The time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="leap")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", default="ours,plain,sentence_transformers,teacher_alone")
    parser.add_argument("--output", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    log_to_stderr()
    settings = read_settings(Path("params.yaml"))
    variant = settings.variant(arguments.variant)
    try:
        with join_processes(resolve_device(variant.train.device)) as ranks:
            result = measured(variant, settings.teacher, ranks, arguments.ways.split(","), arguments.steps)
    except UserError as error:
        sys.exit(f"error: {error}\nthe benchmark uses the results of `make demo`")
    if not ranks.first:
        return
    if arguments.output:
        write_json(arguments.output, result)
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


def measured(
    variant: VariantSettings, teacher: ModelSource, ranks: Ranks, chosen: list[str], steps: int
) -> dict[str, Any]:
    """The last line's content.

    Raises:
        UserError: several processes are to run another way than ours, or the data is not there.
    """
    if ranks.world > 1 and chosen != ["ours"]:
        raise UserError("several processes measure ours only: say --ways ours")
    bench = Bench(variant, teacher, resolve_device(variant.train.device), ranks)
    device = bench.device
    ways: dict[str, Any] = {}
    for way in chosen:
        try:
            ways[way] = getattr(bench, way)(steps)
        except ImportError as missing:
            log.warning("%s is left out: %s", way, missing)
            ways[way] = None
        log.info("%s: %s", way, ways[way])
    highest = peak(device) * ranks.world
    return {
        **ways["ours"],
        "processes": ranks.world,
        "batch_size": variant.train.batch_size,
        "mean_tokens": round(float(bench.text.lengths.mean()), 2),
        "peak_share": round(ways["ours"]["tokens_per_second"] * bench.operations() / highest, 4),
        "peak_tflops": round(highest / 1e12, 1),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device.type == "cuda" else None,
        "device": card_name(str(device)) if device.type == "cuda" else cpu_name(),
        "ways": ways,
        "environment": environment(str(device)),
    }


if __name__ == "__main__":
    main()
