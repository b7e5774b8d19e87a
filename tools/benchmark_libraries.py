"""Latency against other libraries, in the same rounds: what early exit has to beat on this machine.

    python tools/benchmark_libraries.py models/leap-1 --out latency.json
    python tools/benchmark_libraries.py models/leap-1 --device cuda --precision fp16 --length 128

Each library computes the full model on packed batches that are padded beforehand: sentence_transformers,
torch_compile, onnxruntime (`pip install -e '.[bench]'`). It must give the encoder's own vectors before it is
timed; one that cannot be had here is left out with the reason. On a CUDA card full depth in CUDA graphs is timed
too. The last line is one JSON object.
"""

import argparse
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import write_json
from leap.core.progress import log_to_stderr
from leap.doctor.doctor_sentences import sample
from leap.exits import LeapEncoder
from leap.exits.forward import layer_forward
from leap.latency.latency_table import latency_settings, table
from leap.latency.timing import latency_figures
from leap.models.batches import Batch, pack
from leap.models.onnx_graph import convert

log = logging.getLogger(__name__)

# Opening one, torch.compile's compilation included.
LIMIT_SECONDS = 180
# The least cosine to the encoder's own vectors: half precision and other kernels stay above it.
AGREEMENT = 0.999

Forward = Callable[[Batch], Any]
# Takes the padded token ids and the mask, both [B, T] int64.
Padded = Callable[[Tensor, Tensor], Tensor]


class Library:
    """A library whose inputs are padded beforehand, batch by batch."""

    def __init__(self, compute: Padded, pad_token: int) -> None:
        self._compute, self._pad_token = compute, pad_token

    def prepared(self, batches: Sequence[Batch]) -> Forward:
        """Pad these batches; return what is timed on them."""
        inputs = {id(batch): padded(batch, self._pad_token) for batch in batches}
        return lambda batch: self._compute(*inputs[id(batch)])


def open_libraries(
    names: Sequence[str], model: LeapEncoder, batch: Batch
) -> tuple[dict[str, Library], dict[str, str]]:
    """Open the libraries that this machine has; say why it does not have the others.

    Args:
        names: of `LIBRARIES`.
        model: what they compute too, in its precision and on its device.
        batch: on which they are checked.
    """
    found, missing = {}, {}
    expected = layer_forward(model.encoder, batch, model.depth)
    for name in names:
        try:
            with time_limit(LIMIT_SECONDS):
                library = Library(LIBRARIES[name](model), model.encoder.config.pad_token)
                vectors = library.prepared([batch])(batch).to(expected)
        except (ImportError, RuntimeError, OSError, ValueError, UserError) as error:
            missing[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        else:
            agreement = F.cosine_similarity(vectors, expected, dim=-1).min().item()
            if agreement >= AGREEMENT:
                found[name] = library
            else:
                missing[name] = f"its vectors differ: cosine {agreement:.4f}"
    for name, reason in missing.items():
        log.warning("%s is left out: %s", name, reason)
    return found, missing


def padded(batch: Batch, pad_token: int) -> tuple[Tensor, Tensor]:
    """Turn a batch into what other libraries take: token ids and mask, both [B, T] int64, T the longest row."""
    rows = torch.split(batch.ids, batch.lengths.tolist())
    ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad_token)
    places = torch.arange(ids.shape[1], device=ids.device)
    mask = places < batch.lengths.to(ids.device).unsqueeze(1)
    return ids, mask.long()


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Stop what takes longer with a TimeoutError; on the main thread only, as signals are."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Pooled(nn.Module):
    """transformers' own model with the pooling after it."""

    def __init__(self, model: LeapEncoder, attention: str) -> None:
        super().__init__()
        from transformers import AutoModel

        loaded = AutoModel.from_pretrained(  # nosec B615  # a folder on disk, nothing is fetched
            model.folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
        )
        self.model, self.pooling = loaded.eval(), model.encoder.pooling

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "cls":
            return states[:, 0]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


def _sentence_transformers(model: LeapEncoder) -> Padded:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(model.folder), device=str(model.device), local_files_only=True)
    library = library.to(model.encoder.weight.dtype).eval()
    return lambda ids, mask: library({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def _torch_compile(model: LeapEncoder) -> Padded:
    pooled = _Pooled(model, "sdpa").to(model.device, model.encoder.weight.dtype)
    compiled: Padded = torch.compile(pooled, dynamic=True)
    return compiled


def _onnxruntime(model: LeapEncoder) -> Padded:
    import onnxruntime

    on_card = model.device.type == "cuda"
    provider = "CUDAExecutionProvider" if on_card else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise UserError(f"this onnxruntime has no {provider}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would spin on after its call, and whatever is timed next would share its cores with them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        with torch.inference_mode(False):
            convert(model.folder, path, str(model.encoder.weight.dtype).removeprefix("torch."))
        session = onnxruntime.InferenceSession(path, options, providers=[_provider(provider, model.device)])

    def compute(ids: Tensor, mask: Tensor) -> Tensor:
        inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        return torch.from_numpy(session.run(["sentence_embedding"], inputs)[0])

    def compute_on_card(ids: Tensor, mask: Tensor) -> Tensor:
        number = model.device.index or 0
        binding = session.io_binding()
        for name, tensor in (("input_ids", ids), ("attention_mask", mask)):
            binding.bind_input(name, "cuda", number, np.int64, tuple(tensor.shape), tensor.data_ptr())
        binding.bind_output("sentence_embedding", "cuda", number)
        session.run_with_iobinding(binding)
        return torch.utils.dlpack.from_dlpack(binding.get_outputs()[0]._ortvalue)

    return compute_on_card if on_card else compute


def _provider(name: str, device: torch.device) -> str | tuple[str, dict[str, str]]:
    """The provider; on a card on PyTorch's stream, whose events are the clock."""
    if device.type != "cuda":
        return name
    stream = torch.cuda.current_stream(device).cuda_stream
    return name, {"device_id": str(device.index or 0), "user_compute_stream": str(stream)}


LIBRARIES: dict[str, Callable[[LeapEncoder], Padded]] = {
    "sentence_transformers": _sentence_transformers,
    "torch_compile": _torch_compile,
    "onnxruntime": _onnxruntime,
}


def benchmark(model: LeapEncoder, sentences: list[str], names: Sequence[str], settings: Any) -> dict[str, Any]:
    """Time the model's own paths and the libraries in the same rounds."""
    if settings.precision == "fp16" and model.device.type == "cuda":
        model.half()
    first = pack(sorted(model.tokenizer(sentences[:2]), key=len)).to(model.device)
    libraries, missing = open_libraries(names, model, first)
    others = {name: library.prepared for name, library in libraries.items()}
    return {
        "environment": environment(str(model.device)),
        **latency_figures(model, sentences, model.rule, settings, seed=17, others=others),
        "libraries_missing": missing,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder, an installed package or a hub id")
    parser.add_argument("--sentences", type=Path, help="txt, parquet, csv, tsv or jsonl; else bundled ones")
    parser.add_argument("--library", action="append", choices=sorted(LIBRARIES), help="several times; else all")
    parser.add_argument("--batch", action="append", type=int, help="several times; else 1, 8, 32")
    parser.add_argument("--length", action="append", help="'sentences', or tokens a row; several times")
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32", help="fp32, or fp16 on a card")
    parser.add_argument("--out", type=Path, help="where all figures go as JSON")
    given = parser.parse_args()
    log_to_stderr()
    try:
        settings = latency_settings(
            batch_sizes=given.batch or [1, 8, 32],
            lengths=given.length or ["sentences"],
            warmup=given.warmup,
            iterations=given.iterations,
            device=given.device,
            precision=given.precision,
        )
        model = LeapEncoder(given.model, given.device)
        sentences = sample(given.sentences, None).sentences
        figures = benchmark(model, sentences, given.library or list(LIBRARIES), settings)
    except UserError as error:
        sys.exit(f"error: {error}")
    if given.out is not None:
        write_json(given.out, figures)
    log.info("%s", table(figures))
    kept = ("path", "batch", "length", "ms_p50", "ms_p95", "speed_up", "speed_up_ci95", "over")
    rows = [{name: row[name] for name in kept} for row in figures["rows"]]
    sys.stdout.write(json.dumps({**figures, "rows": rows}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
