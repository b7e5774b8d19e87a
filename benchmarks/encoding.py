"""Training and encoding throughput on this machine, each beside the usual way in the same run.

    make bench                                   # after make demo, whose data, cache and leap-1 it uses
    python benchmarks/throughput.py --device cuda --steps 200

Training: our ragged batches beside a plain Hugging Face loop (padded random batches, the same loss).
Encoding: LeapEncoder with exits and at full depth beside sentence-transformers at full depth.
The last line is one JSON object. On a CPU read the ratios; absolute figures are this machine's.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from leap.data.corpus import read_sentences
from leap.environment import environment
from leap.errors import UserError
from leap.exits import LeapEncoder
from leap.exits.encoder import resolve_device
from leap.model.batches import Batch
from leap.model.encoder import Encoder
from leap.model.locate import locate
from leap.model.student import start_student, student_tokenizer_folder
from leap.model.tokenizer import SentenceTokenizer
from leap.objective import objective
from leap.progress import log_to_stderr
from leap.settings import Settings, read_settings
from leap.teacher import TeacherCache
from leap.training import tokens
from leap.training.tokens import TokenizedText
from leap.training.trainer import Trainer

log = logging.getLogger("leap.benchmarks")
WARM_UP = 5


class PaddedBert(nn.Module):
    """`BertModel` on padded batches: what a team without our encoder would train."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        config = BertConfig(**encoder.config.hugging_face())
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, batch: Batch) -> Tensor:
        """Every layer's pooled vectors, [L + 1, B, D]."""
        lengths = torch.tensor([group.length for group in batch.groups for _ in range(group.rows)])
        mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).to(batch.ids.device)
        ids = torch.zeros_like(mask, dtype=torch.int64)
        ids[mask] = batch.ids
        states = self.bert(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1)
        return torch.stack([(weights @ layer).squeeze(1) for layer in states])


@contextmanager
def random_batches() -> Iterator[None]:
    """Batches of whatever lengths come, as a plain loop has them."""
    before, tokens.POOLED_BATCHES = tokens.POOLED_BATCHES, 1
    yield
    tokens.POOLED_BATCHES = before


def training(settings: Settings, steps: int, device: torch.device) -> dict[str, Any]:
    """Sentences and tokens a second of both loops, on the variant `leap`."""
    variant, teacher = settings.variant("leap"), locate(settings.teacher)
    sentences = read_sentences(Path("data/sentences.parquet"))
    cache = TeacherCache(Path("data/teacher"), sentences, teacher.sha256)
    tokenizer = SentenceTokenizer(
        student_tokenizer_folder(variant.student, teacher.folder), variant.train.max_length
    )
    text = TokenizedText(sentences, tokenizer)
    counts = text.counts(tokenizer.vocabulary)

    def rate(wrap: Callable[[Encoder], nn.Module]) -> float:
        encoder, _ = start_student(variant.student, teacher.folder, counts, 1)
        loss = objective(variant.loss, variant.student.layers, variant.student.width, cache.width)
        model: Any = wrap(encoder)
        trainer = Trainer(model, loss, variant.train, text, sentences, cache, 1, device)
        batches = tokens.epoch_batches(text.lengths, variant.train.batch_size, 1, 0)[: steps + WARM_UP]
        for step, rows in enumerate(batches, start=1):
            if step == WARM_UP + 1:
                started = synchronised(device)
            trainer._step(step, rows)
        return sum(map(len, batches[WARM_UP:])) / (synchronised(device) - started)

    ours = rate(lambda encoder: encoder)
    with random_batches():
        plain = rate(PaddedBert)
    return {
        "sentences_per_second": round(ours, 1),
        "tokens_per_second": round(ours * float(np.mean(text.lengths)), 1),
        "plain_loop_sentences_per_second": round(plain, 1),
        "ratio": round(ours / plain, 2),
        "batch_size": variant.train.batch_size,
        "mean_tokens": round(float(np.mean(text.lengths)), 1),
    }


def encoding(device: torch.device) -> dict[str, Any]:
    """Sentences a second of the trained `leap`, with exits, without, and in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    folder = Path("models/leap-1")
    sentences = read_sentences(Path("data/sentences.parquet"))[:2000]
    ours, theirs = LeapEncoder(folder, str(device)), SentenceTransformer(str(folder), device=str(device))
    ways: dict[str, Callable[[], Any]] = {
        "exit": lambda: ours.encode(sentences),
        "full": lambda: ours.encode(sentences, strategy="full"),
        "sentence_transformers": lambda: theirs.encode(sentences),
    }
    rates: dict[str, float] = {}
    for name, way in ways.items():
        way()
        started = synchronised(device)
        way()
        rates[name] = round(len(sentences) / (synchronised(device) - started), 1)
    return rates | {"speed_up_over_sentence_transformers": rates["exit"] / rates["sentence_transformers"]}


def synchronised(device: torch.device) -> float:
    """The time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        device = resolve_device(arguments.device)
        result = {
            "environment": environment(str(device)),
            "training": training(read_settings(Path("params.yaml")), arguments.steps, device),
            "encoding": encoding(device),
        }
    except UserError as error:
        sys.exit(f"error: {error}\nthe benchmark uses the results of `make demo`")
    sys.stdout.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
