"""`LeapEncoder`: sentence vectors with early exit, by SentenceTransformer's arguments."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.exits.input_rules import read_rules
from leap.exits.leaving import InputType, Leaving, Strategy
from leap.exits.output import Precision, check_precision, convert, finish
from leap.exits.paths import PathName, check_name
from leap.exits.sentence_methods import SentenceMethods
from leap.models.batches import Batch
from leap.models.device import dtype_of, own_dtype, resolve_device
from leap.models.exit_heads import ExitHeads
from leap.models.find import find_model
from leap.models.folder import own_dimensions
from leap.models.int8 import to_int8
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.models.prompts import Prompts
from leap.models.small_batches import pack_for_small_batches
from leap.models.texts import checked_texts, text_batches
from leap.models.walk import Walkable

log = logging.getLogger(__name__)


class LeapEncoder(Leaving, SentenceMethods):
    """A sentence encoder that stops when a sentence's vector has stopped moving.

    Example:
        >>> model = LeapEncoder("models/leap-1")
        >>> vectors, layers = model.encode(["a sentence"], return_exit_layers=True)
    """

    def __init__(
        self,
        model_name_or_path: str | Path,
        device: str | None = None,
        *,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        revision: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        truncate_dim: int | None = None,
        quantize: Literal["int8"] | None = None,
        path: PathName = "auto",
    ) -> None:
        """Loads a model; the arguments are SentenceTransformer's.

        Args:
            model_name_or_path: a folder as `stages/train.py`, sentence-transformers or Hugging Face saves it,
                an installed package that holds one, or a hub id. Only a hub id that is not in the cache
                asks the network; no pickle and no code is read.
            device: cpu, cuda, cuda:N; cuda where there is one if None or "auto".
            prompts: prompts by name, over those of the folder's config_sentence_transformers.json.
            default_prompt_name: the prompt that is put before every sentence if `encode` names none.
            revision: commit, tag or branch of a hub repository; main if None.
            model_kwargs: `dtype` (float32, bfloat16, float16, as a torch.dtype or its name), nothing else. Without
                it what the folder's config.json says, else its weights, as in sentence-transformers. Vectors are
                float32 arrays in any case.
            truncate_dim: keep only the first dimensions of vectors; what the folder says if None.
            quantize: int8 computes linear layers in 8 bits and the rest in float32, on a CPU only; exits may move,
                so calibrate with it where it is served with it.
            path: how batches are computed: auto for the fastest that works here and agrees with eager; or
                eager (layer by layer), fused, graphs (docs/exits.md), an error where it does not work.

        Raises:
            UserError: the model cannot be had, is incomplete, or is not one that the encoder computes.
            ValueError: an argument is not supported.
        """
        check_name(path)
        super().__init__()
        self.folder = find_model(model_name_or_path, revision)
        self.device = resolve_device(device or "auto")
        named = dtype_of(model_kwargs)
        dtype = named or (own_dtype(self.folder) if quantize is None else torch.float32)
        opened = open_model(self.folder, dtype=dtype)
        self.encoder: Walkable = opened.encoder.to(self.device)
        if named is None and dtype != torch.float32 and self.device.type == "cpu":
            log.warning(
                "%s: computed in %s, as sentence-transformers computes it; on most CPUs float32 is faster: "
                "model_kwargs={'dtype': 'float32'}",
                *(self.folder, dtype),
            )
        self.quantize = quantize
        if quantize is not None:
            self._to_int8()
        elif self.device.type == "cpu" and isinstance(self.encoder, Encoder):
            pack_for_small_batches(self.encoder)
        self.tokenizer = opened.tokenizer
        self.rule, self.input_rules = read_rules(self.folder, self.depth)
        self.normalizes = opened.normalizes
        heads = ExitHeads.load(self.folder, self.depth, self.width)
        self.heads = heads and heads.to(self.device)
        self.prompts = Prompts.load(self.folder, prompts, default_prompt_name)
        self.truncate_dim = own_dimensions(self.folder) if truncate_dim is None else truncate_dim
        self.path = path
        self.monitor = None

    def __repr__(self) -> str:
        rule = self.rule
        return (
            f"LeapEncoder({str(self.folder)!r}, layers={self.depth}, dimensions={self.get_embedding_dimension()}, "
            f"max_seq_length={self.max_seq_length}, threshold={rule.threshold:g}, min_layer={rule.min_layer}, "
            f"patience={rule.patience}, device={str(self.device)!r})"
        )

    @property
    def max_seq_length(self) -> int:
        """The longest text in tokens, special tokens included; what is longer is cut. It can be set."""
        return self.tokenizer.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.tokenizer.max_length = _whole_number("max_seq_length", length)

    def to(self, device: str) -> "LeapEncoder":
        """Moves the model to a device: cpu, cuda, cuda:N or auto.

        Raises:
            UserError: there is no such device.
            ValueError: the model is quantized, and this is no CPU.
        """
        wanted = resolve_device(device)
        if self.quantize is not None and wanted.type != "cpu":
            raise ValueError(f"a model with quantize={self.quantize!r} stays on the CPU")
        self._paths = None
        self.device = wanted
        self.encoder.to(self.device)
        self.heads = self.heads and self.heads.to(self.device)
        for name in ("predictors", "calibration"):
            self.__dict__.pop(name, None)  # read again on the new device
        return self

    def half(self) -> "LeapEncoder":
        """Weights and buffers in float16, as `SentenceTransformer.half` casts them: what the CUDA paths need.

        Raises:
            ValueError: the model is quantized.
        """
        return self._cast(torch.float16)

    def bfloat16(self) -> "LeapEncoder":
        """Weights in bfloat16; as `half`."""
        return self._cast(torch.bfloat16)

    @torch.inference_mode()
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding"] = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        threshold: float | None = None,
        min_layer: int | None = None,
        patience: int | None = None,
        strategy: Strategy | None = None,
        layer: int | None = None,
        pabee_patience: int = 2,
        max_layer: int | None = None,
        input_type: InputType | None = None,
        return_exit_layers: bool = False,
    ) -> Any:
        """The sentences' vectors.

        The arguments up to `truncate_dim` are SentenceTransformer.encode's, in its order (sbert.net, package
        reference; `pool` and `chunk_size` do not exist here). Vectors are normalised where the folder's own
        modules say so. Several threads may call this at once, unless one of them moves the model (`device`).

        Args:
            inputs: one sentence, or any iterable of them.
            prompt_name: the name of one of the model's prompts, put before every sentence.
            prompt: the text of the prompt itself; wins over prompt_name.
            batch_size: rows computed together; a row's vector does not depend on it.
            show_progress_bar: shows a bar on stderr; if None, where this module's logger is at INFO or DEBUG.
            output_value: sentence_embedding, the only one there is.
            precision: float32, or fewer bits: int8, uint8, binary, ubinary.
            convert_to_numpy: return a numpy array; else a list of tensors.
            convert_to_tensor: return one tensor; wins over convert_to_numpy.
            device: move the model there first.
            normalize_embeddings: scale the vectors to length 1.
            truncate_dim: keep only the first dimensions; the model's own setting if None.
            threshold: theta; the folder's own if None, like the next two. A strategy ignores what it has no
                use for: calibrated ignores all three.
            min_layer: l_min; for near_final it is 1 if None.
            patience: k, the gap between the layers compared (Algorithm 1).
            strategy: docs/exits.md tells them apart. None is what leap.json says for the input type where it says
                something and no threshold, min_layer or patience is given, else converged.
                converged: Algorithm 1.
                patience: PABEE's, `pabee_patience` layers in a row at which Algorithm 1's test holds.
                predictors: the folder's predictors give a similarity to the last layer of theta.
                calibrated: the thresholds that `leap calibrate` tested on held-out sentences.
                full: all layers.
                fixed: every row at `layer`.
                near_final: the first layer within theta of the last one. An oracle for analysis only: it
                computes all layers and saves nothing.
            layer: the layer of strategy fixed, counted from 1.
            pabee_patience: p of strategy patience.
            max_layer: a budget: a row that has not left by this layer leaves here, whatever the strategy.
            input_type: query or document takes the prompt of that name where none is given, and leaves by the
                rule of that name in leap.json; `encode_query` and `encode_document` set it.
            return_exit_layers: also return each sentence's exit layer, [N] int64.

        Returns:
            [N, D] float32, or [D] for one sentence; with `return_exit_layers` a pair.

        Raises:
            TypeError: a sentence is no string.
            ValueError: an argument does not fit the model.
            UserError: the strategy needs a file that the folder does not have.
        """
        texts = checked_texts(inputs)
        check_precision(precision)
        if output_value != "sentence_embedding":
            raise ValueError(f"output_value {output_value!r} is not supported, only 'sentence_embedding'")
        batch_size = _whole_number("batch_size", batch_size)
        dimensions = self._dimensions(truncate_dim)
        if input_type not in (None, *get_args(InputType)):
            raise ValueError(f"input_type {input_type!r} is neither query nor document")
        if prompt is None and prompt_name is None:
            prompt_name = input_type
        prompt = self.prompts.text(prompt, prompt_name)
        if show_progress_bar is None:
            show_progress_bar = log.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
        if device is not None:
            self.to(device)
        leave = self.leave_by(
            strategy=strategy,
            threshold=threshold,
            min_layer=min_layer,
            patience=patience,
            layer=layer,
            pabee_patience=pabee_patience,
            max_layer=max_layer,
            input_type=input_type,
        )
        kept_on = self.device if convert_to_tensor or not convert_to_numpy else torch.device("cpu")
        vectors = torch.empty(len(texts), dimensions, device=kept_on)
        exits = torch.empty(len(texts), dtype=torch.int64)
        for rows, batch in self._batches(texts, prompt, batch_size, show_progress_bar):
            pooled, exits[rows] = leave(batch) if len(batch.ids) else self._without_tokens(batch.rows)
            vectors[rows] = finish(pooled, self.normalizes, dimensions, normalize_embeddings).to(kept_on)
        result: Any = convert(vectors, precision, convert_to_numpy, convert_to_tensor)
        layers: Any = exits.numpy()
        if isinstance(inputs, str):
            result, layers = result[0], int(layers[0])
        return (result, layers) if return_exit_layers else result

    @torch.inference_mode()
    def pooled_layers(
        self,
        sentences: Sequence[str],
        batch_size: int = 32,
        show_progress_bar: bool = False,
        prompt_name: str | None = None,
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Every layer's pooled vectors, a batch at a time: what all analysis starts from.

        Args:
            sentences: texts.
            batch_size: rows computed together.
            show_progress_bar: on stderr.
            prompt_name: the name of one of the model's prompts; its default one if None.

        Yields:
            The sentences' indices and their vectors, [L + 1, B, D] float32 on the CPU, not normalised;
            index 0 is the embedding layer.
        """
        texts, prompt = checked_texts(sentences), self.prompts.text(None, prompt_name)
        for rows, batch in self._batches(texts, prompt, batch_size, show_progress_bar):
            pooled = self.encoder(batch).cpu() if len(batch.ids) else None
            yield rows, torch.zeros(self.depth + 1, batch.rows, self.width) if pooled is None else pooled

    def _without_tokens(self, rows: int) -> tuple[Tensor, Tensor]:
        """Zeros at full depth: the mean over no tokens, as sentence-transformers computes it."""
        return torch.zeros(rows, self.width, device=self.device), torch.full((rows,), self.depth)

    def _batches(
        self, texts: list[str], prompt: str | None, batch_size: int, show: bool
    ) -> Iterator[tuple[list[int], Batch]]:
        for rows, batch in text_batches(self.tokenizer, texts, prompt, batch_size, show):
            yield rows, batch.to(self.device)

    def _cast(self, dtype: torch.dtype) -> "LeapEncoder":
        if self.quantize is not None:
            raise ValueError(f"a model with quantize={self.quantize!r} keeps its precision")
        self._paths = None
        self.encoder.to(dtype)
        return self

    def _to_int8(self) -> None:
        if self.quantize != "int8":
            raise ValueError(f"quantize {self.quantize!r} is not supported, only 'int8'")
        if self.device.type != "cpu" or self.encoder.weight.dtype != torch.float32:
            raise ValueError(
                "quantize='int8' is for float32 weights on a CPU: leave out model_kwargs, set device='cpu'"
            )
        if not isinstance(self.encoder, Encoder):
            raise UserError(
                f"{self.folder}: quantize='int8' is for models of the BERT family, and transformers computes this "
                "one: leave it out"
            )
        to_int8(self.encoder)

    def _dimensions(self, truncate_dim: int | None) -> int:
        width = self.width
        wanted = self.truncate_dim if truncate_dim is None else truncate_dim
        return width if wanted is None else min(_whole_number("truncate_dim", wanted), width)


def _whole_number(name: str, value: object) -> int:
    """An argument as an int, numpy's too.

    Raises:
        ValueError: it is no whole number of at least 1.
    """
    try:
        number = 0 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} {value!r} must be a whole number of at least 1")
    return number
