"""The reference model: a folder as sentence-transformers and transformers read it, stopped at after any layer.

Any architecture of transformers is computed by its own code. Hooks on its layers (`leap.models.layer_modules`)
show the hidden state of every layer while the model's forward pass runs, take out the rows that left before the
next layer, and end the pass when none is left.

Models with a norm after their last layer (most decoders, T5) have it applied before every exit, as it is before
the last one: p_l is what the model would give if it ended after layer l, and p_L is sentence-transformers' vector.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.models.batches import Batch, pack
from leap.models.layer_modules import LayerModules, NoLayersError, find_layers
from leap.models.nested_tensors import Way, first_tensor, replace_tensors, tensors_in
from leap.models.open_reference import first_line, missing_weights, open_reference
from leap.models.walk import Visit

log = logging.getLogger(__name__)

# Made rows on which a model's layers are found: of different lengths, so that there is padding.
PROBE_LENGTHS = (3, 5, 9)
LEAST_COSINE = 0.9999
# A row's length where neither the tokenizer nor the model has a limit.
UNLIMITED = 2**20


@dataclass(frozen=True)
class ReferenceConfig:
    """The shape of a reference model; the names are those of the packed encoder's.

    layers: L.
    width: D of its vectors.
    vocabulary: rows of the table of word embeddings.
    pad_token: the id that fills shorter rows.
    max_tokens: the longest row.
    """

    layers: int
    width: int
    vocabulary: int
    pad_token: int
    max_tokens: int


@dataclass
class _Pass:
    """One forward pass that is under way.

    kept: for each number of rows that a tensor may still have, where the rows that stay lie in it.
    """

    visit: Visit
    features: dict[str, Tensor]
    rows: Tensor
    kept: dict[int, Tensor] = field(default_factory=dict)
    entered: int = 0

    def leave(self, stays: Tensor) -> None:
        index = stays.nonzero().squeeze(1).to(self.rows.device)
        self.kept = {size: places[index] for size, places in self.kept.items()} | {len(self.rows): index}
        self.rows = self.rows[index]

    def narrow(self, tensor: Tensor) -> Tensor:
        """Return the rows that stay, of a tensor whose first dimension is the batch."""
        places = self.kept.get(len(tensor))
        return tensor if places is None or len(tensor) == len(self.rows) else tensor[places]


class _EveryRowLeftError(Exception):
    """Ends a model's forward pass."""


class ReferenceEncoder(nn.Module):
    """Any sentence-transformers model, read after every layer."""

    packs = False

    def __init__(self, folder: Path, layers: int | None = None, dtype: torch.dtype = torch.float32) -> None:
        """Open a folder by sentence-transformers, from local files and safetensors only.

        Args:
            folder: the model's.
            layers: keep only the first ones; all if None.
            dtype: to compute in. In half precision the model is opened in float32 first: whether its layers can
                be walked is seen where no rounding hides it.

        Raises:
            UserError: it needs code of its own, cannot be read, or its layers cannot be walked one by one.
        """
        super().__init__()
        self._narrow = dtype != torch.float32
        if self._narrow:
            ReferenceEncoder(folder, layers)
        self.folder = folder
        with torch.random.fork_rng(devices=[]):  # what it draws is read over: a seed's draws stay the caller's
            self.model = open_reference(folder, layers, dtype)
        modules = list(self.model)
        self.normalizes = type(modules[-1]).__name__ == "Normalize"
        self.transformer = modules[0]
        self.after = nn.ModuleList(modules[1 : len(modules) - self.normalizes])
        self._check_modules()
        self.requires_grad_(False).eval()
        self._here = threading.local()
        tokenizer = self.transformer.tokenizer
        self._left = getattr(tokenizer, "padding_side", "right") == "left"
        pad = getattr(tokenizer, "pad_token_id", None)
        vocabulary = len(self._words())
        longest = min(self.transformer.max_seq_length or UNLIMITED, _positions(self.transformer.auto_model))
        if longest < UNLIMITED:
            self.transformer.max_seq_length = longest
        self.config = ReferenceConfig(0, 0, vocabulary, pad or 0, longest)
        # Each layer's module; where layers share their weights, one module several times.
        layout = self._find_layers()
        self.layers, self._norm = layout.layers, layout.norm
        self._batched: list[set[Way]] = [set() for _ in self.layers]
        for module in dict.fromkeys(self.layers):
            module.register_forward_pre_hook(self._before, with_kwargs=True)
            module.register_forward_hook(self._behind)
        self._find_shape()
        self._check_exits()
        # Nothing was computed of what the weights lack, such as a pooler; zeros can be saved.
        self._unused = {name for name, parameter in self.model.named_parameters() if parameter.isnan().all()}
        for name in self._unused:
            self.model.get_parameter(name).zero_()

    @property
    def weight(self) -> Tensor:
        return self._words()

    def _words(self) -> Tensor:
        try:
            table: Tensor = self.transformer.auto_model.get_input_embeddings().weight
        except (AttributeError, NotImplementedError):
            raise self._unwalkable("it has no table of word embeddings") from None
        return table

    @property
    def depth(self) -> int:
        return self.config.layers

    @property
    def pooling(self) -> str:
        modes = [str(getattr(module, "pooling_mode", "")) for module in self.after]
        return ", ".join(mode for mode in modes if mode) or "none"

    def word_vectors(self) -> Tensor:
        return self.weight.detach()

    def forward(self, batch: Batch) -> Tensor:
        """Compute the pooled vectors p_l of every layer, [L + 1, B, D] float32, not normalised."""
        pooled: list[Tensor] = []
        self.walk(batch, lambda number, pool: pooled.append(pool()))
        return torch.stack(pooled)

    def trainable(self) -> "ReferenceEncoder":
        """Return the same model with weights that a training changes; dropout stays off."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name not in self._unused)
        return self

    def save(self, folder: Path, max_length: int | None = None) -> None:
        """Write the model by sentence-transformers, with another longest input if one is given."""
        if max_length is not None:
            self.transformer.max_seq_length = max_length
            self.transformer.tokenizer.model_max_length = max_length
        self.model.save(str(folder), create_model_card=False)

    @torch.inference_mode()
    def first_layers(self, layers: int) -> "ReferenceEncoder":
        """Open the same model again with its first layers alone.

        Raises:
            UserError: they give other vectors than within the whole model.
        """
        cut = ReferenceEncoder(self.folder, layers, self.weight.dtype)
        batch = _made_batch(self.config.vocabulary, PROBE_LENGTHS)
        if cut.depth != layers or not _agree(cut(batch), self(batch)[: layers + 1]):
            raise UserError(
                f"{self.folder}: its first {layers} layers alone are not what they are within the model: use "
                f"LeapEncoder.encode(..., strategy='fixed', layer={layers}), or export the whole model"
            )
        return cut

    def walk(self, batch: Batch, visit: Visit) -> None:
        features = self._pad(batch)
        rows = torch.arange(len(features["input_ids"]), device=features["input_ids"].device)
        self._here.walk = walk = _Pass(visit, features, rows)
        try:
            output = self.transformer(dict(features))
        except _EveryRowLeftError:
            return
        finally:
            self._here.walk = None
        states = output[self.transformer.module_output_name]
        visit(self.config.layers, lambda: self._pool(states, walk))

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Show the embeddings before the first layer; give each layer only the rows that are still there."""
        walk: _Pass | None = getattr(self._here, "walk", None)
        if walk is None:
            return None
        if walk.entered == 0:
            states = first_tensor(args, kwargs)
            self._show(walk, 0, states)
        number = walk.entered
        walk.entered += 1
        if not walk.kept:
            return None
        batched = self._batched[number]
        narrow = {path: walk.narrow(tensor) for path, tensor in tensors_in((args, kwargs)) if path in batched}
        return replace_tensors((args, kwargs), narrow)

    def _behind(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        walk: _Pass | None = getattr(self._here, "walk", None)
        if walk is not None and walk.entered < len(self.layers):
            self._show(walk, walk.entered, first_tensor((output,), {}))

    def _show(self, walk: _Pass, number: int, states: Tensor) -> None:
        stays = walk.visit(number, lambda: self._pool(self._end(states), walk))
        if stays is None:
            return
        if not stays.any():
            raise _EveryRowLeftError
        walk.leave(stays)

    def _end(self, states: Tensor) -> Tensor:
        if self._norm is None:
            return states
        out: Tensor = self._norm(states)
        return out

    def _pool(self, states: Tensor, walk: _Pass) -> Tensor:
        """The rows' vectors by the model's own modules after the transformer, [b, T, D] to [b, D] float32."""
        features = {name: tensor[walk.rows] for name, tensor in walk.features.items()}
        features["token_embeddings"] = states
        for module in self.after:
            features = module(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors.float()

    def _pad(self, batch: Batch) -> dict[str, Tensor]:
        lengths = batch.lengths
        width = int(lengths.max())
        places = torch.arange(width)
        real = places >= width - lengths[:, None] if self._left else places < lengths[:, None]
        real = real.to(batch.ids.device)
        ids = torch.full(real.shape, self.config.pad_token, device=batch.ids.device)
        ids[real] = batch.ids
        return {"input_ids": ids, "attention_mask": real.long()}

    def _check_modules(self) -> None:
        kind = type(self.transformer).__name__
        if kind != "Transformer" or self.transformer.module_output_name != "token_embeddings":
            raise self._unwalkable(f"its first module is {kind}, which has no layers that give token embeddings")
        for module in self.after:
            if asked := sorted(getattr(module, "forward_kwargs", ())):
                raise self._unwalkable(
                    f"its module {type(module).__name__} computes by what encode is given ({', '.join(asked)})"
                )
            if not getattr(module, "include_prompt", True):
                raise self._unwalkable("it leaves its prompt out of the mean (include_prompt false)")

    @torch.inference_mode()
    def _find_layers(self) -> LayerModules:
        features = self._pad(_made_batch(self.config.vocabulary, PROBE_LENGTHS))
        accepted = self.transformer.model_forward_params or set(features)
        given = {key: value for key, value in features.items() if key in accepted}
        try:
            return find_layers(self.transformer.auto_model, given)
        except NoLayersError as error:
            self._check_finite(self.transformer.auto_model(**given).last_hidden_state)
            raise self._unwalkable(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever an architecture of its own raises
            raise self._unwalkable(f"transformers cannot run it layer by layer ({first_line(error)})") from None

    @torch.inference_mode()
    def _find_shape(self) -> None:
        """Which of a layer's inputs have a row for each row of the batch, and the vectors' width."""
        sizes: list[list[dict[Way, int]]] = []
        for lengths in (PROBE_LENGTHS, (*PROBE_LENGTHS, PROBE_LENGTHS[-1])):
            seen: list[dict[Way, int]] = []
            hooks = [
                module.register_forward_pre_hook(
                    lambda module, args, kwargs, seen=seen: seen.append(
                        {path: len(tensor) for path, tensor in tensors_in((args, kwargs)) if tensor.ndim}
                    ),
                    with_kwargs=True,
                )
                for module in dict.fromkeys(self.layers)
            ]
            try:
                pooled = self._probe(lengths)
            finally:
                for hook in hooks:
                    hook.remove()
            sizes.append(seen)
        one, other = sizes
        if len(one) != len(self.layers) or len(other) != len(one):
            raise self._unwalkable(f"{len(one)} calls of its {len(self.layers)} layers were seen")
        rows = len(PROBE_LENGTHS)
        for number, (first, second) in enumerate(zip(one, other, strict=True)):
            self._batched[number] = {
                path for path, size in first.items() if size == rows and second.get(path) == rows + 1
            }
        old = self.config
        self.config = ReferenceConfig(
            len(self.layers), pooled.shape[-1], old.vocabulary, old.pad_token, old.max_tokens
        )

    def _probe(self, lengths: Sequence[int]) -> Tensor:
        try:
            pooled: Tensor = self(_made_batch(self.config.vocabulary, lengths))
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a module of another form raises
            raise self._unwalkable(f"its modules cannot pool one layer at a time ({first_line(error)})") from None
        return pooled

    @torch.inference_mode()
    def _check_exits(self) -> None:
        """Compare full depth with sentence-transformers, rows with themselves alone, and rows that stay."""
        batch = _made_batch(self.config.vocabulary, PROBE_LENGTHS)
        pooled = self._probe(PROBE_LENGTHS)
        self._check_finite(pooled)
        if self._narrow:
            return
        output = self.model(self._pad(batch))["sentence_embedding"].float()
        full = F.normalize(pooled[-1], dim=-1) if self.normalizes else pooled[-1]
        if not _agree(full, output):
            raise self._unwalkable("its vectors are not those of its layers one by one")
        shortest = self(_made_batch(self.config.vocabulary, PROBE_LENGTHS[:1]))
        if not _agree(shortest[:, 0], pooled[:, 0]):
            raise self._unwalkable("a row's vector depends on how far its batch is padded")
        middle = max(1, self.config.layers // 2)
        if middle == self.config.layers:
            return
        rest: list[Tensor] = []
        stay = torch.tensor([False, True, True])

        def visit(number: int, pool: Callable[[], Tensor]) -> Tensor | None:
            if number > middle:
                rest.append(pool())
            return stay if number == middle else None

        try:
            self.walk(batch, visit)
        except Exception as error:  # noqa: BLE001 - a layer whose inputs do not fit each other any more
            raise self._unwalkable(f"its rows cannot leave one by one ({first_line(error)})") from None
        if not _agree(torch.stack(rest), pooled[middle + 1 :, 1:]):
            raise self._unwalkable("a row's vectors depend on the rows next to it")

    def _check_finite(self, states: Tensor) -> None:
        if states.isfinite().all():
            return
        if self._narrow:
            raise UserError(
                f"{self.folder}: its vectors are finite in float32, but not in {self.weight.dtype}: open it with "
                "model_kwargs={'dtype': 'float32'}"
            )
        reason = missing_weights(self.transformer.auto_model) or "its weights give"
        raise UserError(
            f"{self.folder}: {reason} vectors that are not finite: the model is damaged or incomplete; fetch "
            "or train it again"
        )

    def _unwalkable(self, reason: str) -> UserError:
        return UserError(
            f"{self.folder}: early exit cannot walk this model's layers: {reason}; choose another model, or use "
            "this one by sentence-transformers, at full depth"
        )


def _positions(model: nn.Module) -> int:
    """The rows that tables of absolute positions leave for tokens: some begin after the place of padding."""
    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    return min(tables, default=UNLIMITED)


def _made_batch(vocabulary: int, lengths: Sequence[int]) -> Batch:
    """Rows of made tokens, special ones left out where there are others."""
    first = min(10, vocabulary // 2)
    rows = [
        [first + (31 * row + 17 * place * place + 7) % (vocabulary - first) for place in range(length)]
        for row, length in enumerate(lengths)
    ]
    return pack(rows)


def _agree(given: Tensor, wanted: Tensor) -> bool:
    cosines = F.cosine_similarity(given.double(), wanted.double(), dim=-1)
    return bool((cosines >= LEAST_COSINE).all())
