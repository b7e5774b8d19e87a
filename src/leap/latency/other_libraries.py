"""Other ways to run the same full model: what early exit has to beat in the same run.

Each takes a packed batch, padded beforehand, and gives the vectors that the encoder's full depth gives: that
is checked on opening. One that cannot be had here is left out with the reason.
"""

import logging
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.exits import LeapEncoder
from leap.exits.forward import layer_forward
from leap.models.batches import Batch
from leap.models.onnx_graph import convert

log = logging.getLogger(__name__)

# Opening one, torch.compile's compilation included.
LIMIT_SECONDS = 180
# The least cosine to the encoder's own vectors: half precision and other kernels stay above it.
AGREEMENT = 0.999

Forward = Callable[[Batch], Any]
# Takes the padded token ids and the mask, both [B, T] int64.
Padded = Callable[[Tensor, Tensor], Tensor]


class Rival:
    """A rival whose inputs were padded beforehand, batch by batch."""

    def __init__(self, compute: Padded, pad_token: int) -> None:
        self._compute, self._pad_token = compute, pad_token

    def prepared(self, batches: Sequence[Batch]) -> Forward:
        """What is timed on these batches."""
        inputs = {id(batch): padded(batch, self._pad_token) for batch in batches}
        return lambda batch: self._compute(*inputs[id(batch)])


def open_rivals(names: Sequence[str], model: LeapEncoder, batch: Batch) -> tuple[dict[str, Rival], dict[str, str]]:
    """The rivals that this machine has, and why it has not the others.

    Args:
        names: of `RIVALS`.
        model: what they compute too, in its precision and on its device.
        batch: on which they are checked.
    """
    found, missing = {}, {}
    expected = layer_forward(model.encoder, batch, model.depth)
    for name in names:
        try:
            with time_limit(LIMIT_SECONDS):
                rival = Rival(RIVALS[name](model), model.encoder.config.pad_token)
                vectors = rival.prepared([batch])(batch).to(expected)
        except (ImportError, RuntimeError, OSError, ValueError, UserError) as error:
            missing[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        else:
            agreement = F.cosine_similarity(vectors, expected, dim=-1).min().item()
            if agreement >= AGREEMENT:
                found[name] = rival
            else:
                missing[name] = f"its vectors differ: cosine {agreement:.4f}"
    for name, reason in missing.items():
        log.warning("%s is left out: %s", name, reason)
    return found, missing


def padded(batch: Batch, pad_token: int) -> tuple[Tensor, Tensor]:
    """A batch as other libraries take it: token ids and mask, both [B, T] int64, T the longest row."""
    rows = torch.split(batch.ids, batch.lengths.tolist())
    ids = nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad_token)
    places = torch.arange(ids.shape[1], device=ids.device)
    mask = places < batch.lengths.to(ids.device).unsqueeze(1)
    return ids, mask.long()


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Stops what takes longer with a TimeoutError; on the main thread only, as signals are."""

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

    rival = SentenceTransformer(str(model.folder), device=str(model.device), local_files_only=True)
    rival = rival.to(model.encoder.words.weight.dtype).eval()
    return lambda ids, mask: rival({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def _torch_compile(model: LeapEncoder) -> Padded:
    rival = _Pooled(model, "sdpa").to(model.device, model.encoder.words.weight.dtype)
    compiled: Padded = torch.compile(rival, dynamic=True)
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
            convert(model.folder, path, str(model.encoder.words.weight.dtype).removeprefix("torch."))
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


RIVALS: dict[str, Callable[[LeapEncoder], Padded]] = {
    "sentence_transformers": _sentence_transformers,
    "torch_compile": _torch_compile,
    "onnxruntime": _onnxruntime,
}
