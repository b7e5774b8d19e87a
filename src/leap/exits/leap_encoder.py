"""`LeapEncoder`: sentence vectors with early exit, by SentenceTransformer's arguments."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import CHANGED, has_wrong_checksum
from leap.exits.calibration import Calibration
from leap.exits.input_rules import input_rules
from leap.exits.observer import Observer
from leap.exits.output import Precision, check_precision, convert, finish
from leap.exits.paths import PathName, Paths, check_name
from leap.exits.policy import ByPredictors, Calibrated, ExitPolicy, Fixed, Patient, capped
from leap.exits.rules import ExitRule, at_layers, near_final
from leap.exits.sentence_methods import SentenceMethods
from leap.exits.similarity_predictors import Predictors
from leap.models.batches import Batch
from leap.models.device import dtype_of, resolve_device
from leap.models.exit_heads import ExitHeads
from leap.models.find import find_model
from leap.models.int8 import to_int8
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.models.prompts import Prompts
from leap.models.small_batches import pack_for_small_batches
from leap.models.texts import checked_texts, text_batches
from leap.models.walk import Walkable

log = logging.getLogger(__name__)

Strategy = Literal["converged", "patience", "predictors", "calibrated", "full", "fixed", "near_final"]

InputType = Literal["query", "document"]

Leave = Callable[[Batch], tuple[Tensor, Tensor]]

# The paper's values (Appendix L), for a folder that says nothing itself.
PAPER_RULE = ExitRule(threshold=0.95, min_layer=6, patience=1)


class LeapEncoder(SentenceMethods):
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
            model_kwargs: `dtype` (float32, bfloat16, float16, as a torch.dtype or its name), nothing else.
            truncate_dim: keep only the first dimensions of vectors.
            quantize: int8 computes linear layers in 8 bits, on a CPU only; exits may move, so calibrate
                with it where it is served with it.
            path: how batches are computed: auto for the fastest that works here and agrees with eager; or
                eager (layer by layer), fused, graphs (docs/exits.md), an error where it does not work.

        Raises:
            UserError: the model cannot be had, is incomplete, or is not one that the encoder computes.
            ValueError: an argument is not supported.
        """
        check_name(path)
        self.folder = find_model(model_name_or_path, revision)
        self.device = resolve_device(device or "auto")
        opened = open_model(self.folder)
        self.encoder: Walkable = opened.encoder.to(self.device, dtype_of(model_kwargs))
        self.quantize = quantize
        if quantize is not None:
            self._to_int8()
        elif self.device.type == "cpu" and isinstance(self.encoder, Encoder):
            pack_for_small_batches(self.encoder)
        self.tokenizer = opened.tokenizer
        self.rule, self.input_rules = read_rules(self.folder, self.depth)
        self.normalizes = opened.normalizes
        heads = ExitHeads.load(self.folder, self.depth, self.width)
        # What leaves early goes through them; None where the layers' own vectors leave.
        self.heads = heads and heads.to(self.device)
        self.prompts = Prompts.load(self.folder, prompts, default_prompt_name)
        self.truncate_dim = truncate_dim
        self.path = path
        self._paths: Paths | None = None
        self._lock = Lock()
        # Counts what encode does; leap.serve.
        self.monitor: Observer | None = None

    def __repr__(self) -> str:
        rule = self.rule
        return (
            f"LeapEncoder({str(self.folder)!r}, layers={self.depth}, dimensions={self.get_embedding_dimension()}, "
            f"max_seq_length={self.max_seq_length}, threshold={rule.threshold:g}, min_layer={rule.min_layer}, "
            f"patience={rule.patience}, device={str(self.device)!r})"
        )

    @property
    def depth(self) -> int:
        """L."""
        return self.encoder.config.layers

    @property
    def width(self) -> int:
        """D, the dimensions of a vector."""
        return self.encoder.config.width

    @property
    def max_seq_length(self) -> int:
        """The longest text in tokens, special tokens included; what is longer is cut. It can be set."""
        return self.tokenizer.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.tokenizer.max_length = _whole_number("max_seq_length", length)

    @cached_property
    def predictors(self) -> Predictors:
        """The folder's predictors; reading them raises UserError where there are none for these weights."""
        return Predictors.load(self.folder, self.depth, self.width).to(self.device)

    @cached_property
    def calibration(self) -> Calibration:
        """The folder's calibration; reading it raises UserError where there is none for these weights."""
        return Calibration.load(self.folder, self.depth).to(self.device)

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
        """Weights in float16, as `model_kwargs={"dtype": "float16"}` loads them: what the CUDA paths need.

        Raises:
            ValueError: the model is quantized.
        """
        return self._cast(torch.float16)

    def bfloat16(self) -> "LeapEncoder":
        """Weights in bfloat16; as `half`."""
        return self._cast(torch.bfloat16)

    @property
    def paths(self) -> Paths:
        """Choose how batches are computed, again when the weights moved or changed their precision.

        Raises:
            UserError: the path that was asked for does not work here.
        """
        with self._lock:
            paths = self._paths
            if paths is None or paths.encoder is not self.encoder or paths.moved():
                self._paths = paths = Paths(self.encoder, self.path)
            return paths

    @torch.inference_mode()
    def warm_up(
        self,
        batch_sizes: Sequence[int] = (1, 32),
        lengths: Sequence[int] = (16, 32, 64),
        *,
        strategy: Strategy = "converged",
        **exits: Any,
    ) -> None:
        """Compiles and captures now what `encode` would on first use; on a CPU there is nothing to do.

        Args:
            batch_sizes: the batches that will come: rows,
            lengths: and tokens of their longest row; every combination.
            strategy: as in `encode`, and so are threshold, min_layer, patience, layer and pabee_patience.
            exits: those.

        Raises:
            UserError: the path that was asked for does not work here.
        """
        layer, pabee_patience = exits.pop("layer", None), exits.pop("pabee_patience", 2)
        self._check_strategy(strategy, layer)
        policy = self._policy(strategy, self.rule.changed(**exits), layer, pabee_patience)
        for rows in batch_sizes:
            for length in lengths:
                self.paths.warm(rows, min(length, self.tokenizer.max_length), policy)

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

    def leave_by(
        self,
        *,
        strategy: Strategy | None = None,
        threshold: float | None = None,
        min_layer: int | None = None,
        patience: int | None = None,
        layer: int | None = None,
        pabee_patience: int = 2,
        max_layer: int | None = None,
        input_type: InputType | None = None,
    ) -> Leave:
        """Prepare what computes a batch: pooled vectors [B, D], not normalised, and exit layers [B].

        The arguments, and what is raised, are those of `encode`.
        """
        if strategy is None and (threshold, min_layer, patience, layer) == (None, None, None, None):
            said = self.input_rules.get(input_type or "", {})
            strategy, layer = said.get("strategy"), said.get("layer")
            threshold, min_layer, patience = (said.get(name) for name in ("threshold", "min_layer", "patience"))
        strategy = strategy or "converged"
        rule = self.rule.changed(threshold, min_layer, patience)
        self._check_strategy(strategy, layer)
        if strategy == "near_final":
            if max_layer is not None:
                raise ValueError("strategy near_final computes all layers: leave out max_layer")
            return self._oracle(rule.threshold, 1 if min_layer is None else min_layer)
        return self._exits(capped(self._policy(strategy, rule, layer, pabee_patience), max_layer, self.depth))

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

    def returned(self, pooled: Tensor) -> Tensor:
        """Return what an exit at each layer gives, [L + 1, N, D] pooled layers to the same: through the heads."""
        return pooled if self.heads is None else self.heads.to(pooled.device).mapped(pooled)

    def _batches(
        self, texts: list[str], prompt: str | None, batch_size: int, show: bool
    ) -> Iterator[tuple[list[int], Batch]]:
        for rows, batch in text_batches(self.tokenizer, texts, prompt, batch_size, show):
            yield rows, batch.to(self.device)

    def _observe(
        self,
        monitor: Observer,
        policy: ExitPolicy,
        batch: Batch,
        vectors: Tensor,
        exits: Tensor,
        similarities: dict[int, Tensor],
    ) -> None:
        """Tells the monitor of a batch that exited; rows that it samples are computed to full depth too."""
        chosen = torch.tensor(monitor.sample(batch.rows))
        if not chosen.any():
            monitor.record(policy, exits, similarities)
            return
        shadowed, _ = batch.keep(chosen, batch.ids[:, None])
        exited = vectors[chosen.to(vectors.device)]
        monitor.record(policy, exits, similarities, exited, self.encoder(shadowed))

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

    def _policy(self, strategy: Strategy, rule: ExitRule, layer: int | None, pabee_patience: int) -> ExitPolicy:
        if strategy in ("full", "fixed"):
            return Fixed(layer or self.depth)
        if strategy == "calibrated":
            return Calibrated(self.calibration)
        rule.check_depth(self.depth)
        if strategy == "predictors":
            return ByPredictors(self.predictors, rule.threshold, rule.min_layer)
        if strategy == "patience":
            patient = Patient(rule, pabee_patience)
            patient.check_depth(self.depth)
            return patient
        return rule

    def _check_strategy(self, strategy: str, layer: int | None) -> None:
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy {strategy!r} is none of {', '.join(get_args(Strategy))}")
        if (strategy == "fixed") != (layer is not None):
            raise ValueError("layer goes with strategy='fixed', and only with it")
        if layer is not None and not 1 <= layer <= self.depth:
            raise ValueError(f"layer {layer} is not a layer of this model: 1 to {self.depth}")

    def _exits(self, policy: ExitPolicy) -> Leave:
        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            monitor = self.monitor
            similarities: dict[int, Tensor] | None = None if monitor is None else {}
            vectors, exits = self.paths.exits(batch, policy, similarities)
            mapped = vectors if self.heads is None else self.heads.at_exits(vectors, exits)
            if monitor is not None and isinstance(policy, Fixed):
                monitor.bypass(batch.rows)
            elif monitor is not None:
                self._observe(monitor, policy, batch, mapped, exits, similarities or {})
            return mapped, exits

        return leave

    def _oracle(self, threshold: float, min_layer: int) -> Leave:
        ExitRule(threshold, min_layer).check_depth(self.depth)

        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            pooled = self.returned(self.encoder(batch))
            exits = near_final(pooled, threshold, min_layer)
            return at_layers(pooled, exits), exits.cpu()

        return leave


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


def read_rules(folder: Path, depth: int) -> tuple[ExitRule, dict[str, dict[str, Any]]]:
    """Read the folder's leap.json; without it the exit rule is the paper's, made to fit the depth.

    Returns:
        The exit rule of `encode`, and the arguments of `encode` for queries and documents (`input_rules`).

    Raises:
        UserError: leap.json is not well-formed, or a rule does not fit the depth.
    """
    path = folder / "leap.json"
    if not path.exists():
        return ExitRule(PAPER_RULE.threshold, min(PAPER_RULE.min_layer, depth), PAPER_RULE.patience), {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("expected an object with the key `exit`")
        if has_wrong_checksum(content):
            raise UserError(f"{path} {CHANGED}: if you set another rule on purpose, take its `checksum` out")
        rule = ExitRule(**content["exit"])
        rule.check_depth(depth)
        others = input_rules(content, depth)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} does not hold an exit rule for {depth} layers ({error}): correct it") from None
    return rule, others
