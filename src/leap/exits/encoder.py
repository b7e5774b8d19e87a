"""`LeapEncoder`: sentence vectors with early exit, by SentenceTransformer's arguments."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.errors import UserError
from leap.exits.paths import Path as ComputePath
from leap.exits.paths import choose_path
from leap.exits.rules import ExitRule
from leap.model.batches import Batch, by_length
from leap.model.encoder import Encoder
from leap.model.tokenizer import SentenceTokenizer
from leap.progress import bar

Strategy = Literal["converged", "full", "fixed"]

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
        self._path: tuple[int, ComputePath] | None = None

    @property
    def depth(self) -> int:
        """L."""
        return self.encoder.config.layers

    @property
    def path(self) -> ComputePath:
        """How batches are computed; chosen anew when the weights moved or changed their precision."""
        weights = self.encoder.words.weight
        if self._path is None or self._path[0] != weights.data_ptr():
            self._path = weights.data_ptr(), choose_path(self.encoder)
        return self._path[1]

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
            threshold: theta; the folder's own if None, like the next two.
            min_layer: l_min.
            patience: k.
            strategy: converged (Algorithm 1), full (all layers), or fixed (every row at `layer`).
            layer: the layer of strategy fixed, counted from 1.
            return_exit_layers: also return each sentence's exit layer, [N] int64.

        Returns:
            [N, D] float32, or [D] for one sentence; with `return_exit_layers` a pair.

        Raises:
            ValueError: an argument does not fit the model.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        rule = ExitRule(
            self.rule.threshold if threshold is None else threshold,
            self.rule.min_layer if min_layer is None else min_layer,
            self.rule.patience if patience is None else patience,
        )
        if strategy == "converged":
            rule.check_depth(self.depth)
        fixed = self._fixed_layer(strategy, layer)
        vectors = torch.empty(len(texts), self.encoder.config.width, device=self.device)
        exits = torch.full((len(texts),), fixed or self.depth)
        for rows, batch in self._batches(texts, prompt, batch_size, show_progress_bar):
            if fixed is None:
                vectors[rows], exits[rows] = self.path.exit(batch, rule)
            else:
                vectors[rows] = self.path.at(batch, fixed)
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

    def _fixed_layer(self, strategy: Strategy, layer: int | None) -> int | None:
        if (strategy == "fixed") != (layer is not None):
            raise ValueError("layer goes with strategy='fixed', and only with it")
        if strategy == "full":
            return self.depth
        if layer is not None and not 1 <= layer <= self.depth:
            raise ValueError(f"layer {layer} is not a layer of this model: 1 to {self.depth}")
        return layer


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
