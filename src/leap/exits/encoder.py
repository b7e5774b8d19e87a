"""`LeapEncoder`: sentence vectors with early exit, by SentenceTransformer's arguments."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.errors import UserError
from leap.exits.calibration import Calibration
from leap.exits.forward import exit_forward
from leap.exits.heads import Heads
from leap.exits.lens import Lens
from leap.exits.policy import ByHeads, Calibrated, ExitPolicy, Fixed, Patient
from leap.exits.rules import ExitRule, at_layers, near_final
from leap.model.batches import Batch, by_length
from leap.model.encoder import Encoder
from leap.model.tokenizer import SentenceTokenizer
from leap.progress import bar

Strategy = Literal["converged", "patience", "heads", "calibrated", "full", "fixed", "near_final"]

Leave = Callable[[Batch], tuple[Tensor, Tensor]]

# The paper's values (Appendix L), for a folder that says nothing itself.
PAPER_RULE = ExitRule(threshold=0.95, min_layer=6, patience=1)


class LeapEncoder:
    """A sentence encoder that stops when a sentence's vector has stopped moving.

    Example:
        >>> model = LeapEncoder("models/leap-1")
        >>> vectors, layers = model.encode(["a sentence"], return_exit_layers=True)
    """

    def __init__(self, folder: str | Path, device: str = "auto") -> None:
        """Loads a model folder.

        Args:
            folder: a folder as `stages/train.py`, sentence-transformers or Hugging Face saves it.
            device: cpu, cuda, cuda:N, or auto for cuda where there is one.

        Raises:
            UserError: the folder is incomplete, or of a family that the encoder does not compute.
        """
        self.folder = Path(folder)
        self.device = resolve_device(device)
        self.encoder = Encoder.load(self.folder).to(self.device)
        self.tokenizer = SentenceTokenizer(self.folder)
        self.rule = read_rule(self.folder, self.depth)
        self.normalizes = _has_normalize(self.folder)

    @property
    def depth(self) -> int:
        """L."""
        return self.encoder.config.layers

    @cached_property
    def heads(self) -> Heads:
        """The folder's exit heads; reading them raises UserError where there are none for these weights."""
        return Heads.load(self.folder, self.depth, self.encoder.config.width).to(self.device)

    @cached_property
    def lens(self) -> Lens:
        """The folder's lens; reading it raises UserError where there is none for these weights."""
        return Lens.load(self.folder, self.depth, self.encoder.config.width).to(self.device)

    @cached_property
    def calibration(self) -> Calibration:
        """The folder's calibration; reading it raises UserError where there is none for these weights."""
        return Calibration.load(self.folder, self.depth).to(self.device)

    @torch.inference_mode()
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        threshold: float | None = None,
        min_layer: int | None = None,
        patience: int | None = None,
        strategy: Strategy = "converged",
        layer: int | None = None,
        pabee_patience: int = 2,
        lens: bool | None = None,
        return_exit_layers: bool = False,
    ) -> Any:
        """The sentences' vectors.

        The arguments up to `normalize_embeddings` are SentenceTransformer.encode's
        (sbert.net, package reference). Vectors are normalised where the folder's own modules say so.

        Args:
            sentences: one sentence or several.
            prompt: text put before every sentence.
            batch_size: rows computed together; a row's vector does not depend on it.
            show_progress_bar: shows a bar on stderr.
            convert_to_numpy: return a numpy array; else a list of tensors.
            convert_to_tensor: return one tensor; wins over convert_to_numpy.
            normalize_embeddings: scale the vectors to length 1.
            threshold: theta; the folder's own if None, like the next two. A strategy ignores what it has no
                use for: calibrated ignores all three.
            min_layer: l_min; for near_final it is 1 if None.
            patience: k, the gap between the layers compared (Algorithm 1).
            strategy: docs/exits.md tells them apart.
                converged: Algorithm 1.
                patience: PABEE's, `pabee_patience` layers in a row at which Algorithm 1's test holds.
                heads: the folder's learned heads predict a similarity to the last layer of theta.
                calibrated: the thresholds that `leap calibrate` tested on held-out sentences.
                full: all layers.
                fixed: every row at `layer`.
                near_final: the first layer within theta of the last one. An oracle for analysis only: it
                computes all layers and saves nothing.
            layer: the layer of strategy fixed, counted from 1.
            pabee_patience: p of strategy patience.
            lens: map an exited vector by the folder's lens; if None, only calibrated does, where it was
                calibrated so.
            return_exit_layers: also return each sentence's exit layer, [N] int64.

        Returns:
            [N, D] float32, or [D] for one sentence; with `return_exit_layers` a pair.

        Raises:
            ValueError: an argument does not fit the model.
            UserError: the strategy or the lens needs a file that the folder does not have.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        rule = ExitRule(
            self.rule.threshold if threshold is None else threshold,
            self.rule.min_layer if min_layer is None else min_layer,
            self.rule.patience if patience is None else patience,
        )
        self._check_strategy(strategy, layer)
        mapping = self._mapping(strategy, lens)
        if strategy == "near_final":
            leave = self._oracle(rule.threshold, 1 if min_layer is None else min_layer, mapping)
        else:
            leave = self._exits(self._policy(strategy, rule, layer, pabee_patience), mapping)
        vectors = torch.empty(len(texts), self.encoder.config.width, device=self.device)
        exits = torch.empty(len(texts), dtype=torch.int64)
        for rows, batch in self._batches(texts, prompt, batch_size, show_progress_bar):
            vectors[rows], exits[rows] = leave(batch)
        if normalize_embeddings or self.normalizes:
            vectors = F.normalize(vectors, dim=-1)
        result = _converted(vectors, convert_to_numpy, convert_to_tensor)
        layers: Any = exits.numpy()
        if isinstance(sentences, str):
            result, layers = result[0], int(layers[0])
        return (result, layers) if return_exit_layers else result

    @torch.inference_mode()
    def pooled_layers(
        self, sentences: Sequence[str], batch_size: int = 32, show_progress_bar: bool = False
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Every layer's pooled vectors, a batch at a time: what all analysis starts from.

        Yields:
            The sentences' indices and their vectors, [L + 1, B, D] float32 on the CPU, not normalised;
            index 0 is the embedding layer.
        """
        for rows, batch in self._batches(list(sentences), None, batch_size, show_progress_bar):
            yield rows, self.encoder(batch).cpu()

    def _batches(
        self, texts: list[str], prompt: str | None, batch_size: int, show: bool
    ) -> Iterator[tuple[list[int], Batch]]:
        token_ids = self.tokenizer([prompt + text for text in texts] if prompt else texts)
        with bar(total=len(texts), unit="sentence", disable=not show) as progress:
            for rows, batch in by_length(token_ids, batch_size):
                yield rows, batch.to(self.device)
                progress.update(len(rows))

    def _policy(
        self, strategy: Strategy, rule: ExitRule, layer: int | None, pabee_patience: int
    ) -> ExitPolicy:
        if strategy in ("full", "fixed"):
            return Fixed(layer or self.depth)
        if strategy == "calibrated":
            return Calibrated(self.calibration)
        rule.check_depth(self.depth)
        if strategy == "heads":
            return ByHeads(self.heads, rule.threshold, rule.min_layer)
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

    def _mapping(self, strategy: Strategy, lens: bool | None) -> Lens | None:
        if strategy != "calibrated":
            return self.lens if lens else None
        if lens not in (None, self.calibration.uses_lens):
            raise ValueError(
                f"lens={lens} is not how {self.folder} was calibrated: its thresholds hold for "
                f"lens={self.calibration.uses_lens}"
            )
        return self.lens if self.calibration.uses_lens else None

    def _exits(self, policy: ExitPolicy, lens: Lens | None) -> Leave:
        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            vectors, exits = exit_forward(self.encoder, batch, policy)
            return (vectors if lens is None else lens.at_exits(vectors, exits)), exits

        return leave

    def _oracle(self, threshold: float, min_layer: int, lens: Lens | None) -> Leave:
        ExitRule(threshold, min_layer).check_depth(self.depth)

        def leave(batch: Batch) -> tuple[Tensor, Tensor]:
            pooled = self.encoder(batch) if lens is None else lens.mapped(self.encoder(batch))
            exits = near_final(pooled, threshold, min_layer)
            return at_layers(pooled, exits), exits.cpu()

        return leave


def resolve_device(device: str) -> torch.device:
    """The device of a setting: auto is cuda where there is one.

    Raises:
        UserError: cuda is asked for and there is none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"device {device!r} is set but this machine has no usable CUDA device: set cpu or auto"
        )
    return torch.device(device)


def read_rule(folder: Path, depth: int) -> ExitRule:
    """The exit rule of the folder's leap.json; the paper's, made to fit the depth, where there is none.

    Raises:
        UserError: leap.json is not what `save_student` writes, or does not fit the depth.
    """
    path = folder / "leap.json"
    if not path.exists():
        return ExitRule(PAPER_RULE.threshold, min(PAPER_RULE.min_layer, depth), PAPER_RULE.patience)
    try:
        rule = ExitRule(**json.loads(path.read_text())["exit"])
        rule.check_depth(depth)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not hold an exit rule for {depth} layers: {error}") from None
    return rule


def _has_normalize(folder: Path) -> bool:
    path = folder / "modules.json"
    return path.exists() and any(
        module["type"].rpartition(".")[2] == "Normalize" for module in json.loads(path.read_text())
    )


def _converted(vectors: Tensor, to_numpy: bool, to_tensor: bool) -> Any:
    if to_tensor:
        return vectors
    if to_numpy:
        result: np.ndarray[Any, np.dtype[np.float32]] = vectors.cpu().numpy()
        return result
    return list(vectors)
