"""The encoder: a BERT-family transformer whose every layer can be read, stopped at and trained.

Its weights load from and save to Hugging Face's names (`leap.models.families`), so a folder works in both.
The own forward pass exists because exits need the layers one by one, on ragged batches without padding.
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from leap.core.errors import UserError
from leap.models.batches import Batch
from leap.models.families import BERT, DEFAULTS, FAMILIES, Family
from leap.models.folder import ModelFolder, UnsupportedError
from leap.models.kernels import varlen
from leap.models.pooling import Pooling, read_pooling
from leap.models.relative_bias import RelativeBias, by_places
from leap.models.walk import Visit
from leap.models.weights import (
    check_depth,
    check_shapes,
    from_hugging_face,
    read_weights,
    to_hugging_face,
)  # fmt: skip

PLAIN_ATTENTION = 64
# No size of a model is above this: a damaged one would ask for all memory.
LARGEST = 2**24


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder.

    positions: rows of the table of positions, those before the first token's included.
    token_types, relative_buckets: 0 where the family has none.
    """

    layers: int
    width: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int = 2
    layer_norm_eps: float = 1e-12
    family: Family = BERT
    pad_token: int = 0
    relative_buckets: int = 0

    @property
    def first_position(self) -> int:
        return self.pad_token + 1 if self.family.places_after_padding else 0

    @property
    def max_tokens(self) -> int:
        return self.positions - self.first_position

    @classmethod
    def load(cls, folder: Path) -> "EncoderConfig":
        """Read a Hugging Face config.json; refuse a family that this encoder does not compute."""
        folder = ModelFolder.read(folder).transformer
        try:
            config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(
                f"{folder} has no config.json, so it is no model: name a folder that has one"
            ) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"{folder}/config.json is not a JSON object ({error}): fetch the model again"
            ) from None
        family = FAMILIES.get(str(config.get("model_type")))
        act = config.get(family.activation if family else "hidden_act", "gelu")
        positions = config.get("position_embedding_type", "absolute")
        if family is None or act != "gelu" or positions != "absolute" or config.get("is_decoder"):
            raise UnsupportedError(
                f"{folder}/config.json: model_type {config.get('model_type')!r} with hidden_act {act!r} and "
                f"{positions!r} positions is not supported; the encoder computes {', '.join(FAMILIES)} "
                "models that are no decoders, with exact gelu and absolute positions"
            )
        try:
            shape = {
                ours: config.get(theirs, DEFAULTS[ours]) if ours in DEFAULTS else config[theirs]
                for ours, theirs in family.keys.items()
            }
        except KeyError as missing:
            raise UserError(
                f"{folder}/config.json lacks {missing}: it is not a whole {family.model_type} config: fetch "
                "the model again"
            ) from None
        pad_token = config.get("pad_token_id")
        default = 1 if family.places_after_padding else 0
        shape.setdefault("token_types", 0)
        found = cls(**shape, family=family, pad_token=default if pad_token is None else pad_token)
        found.check(folder)
        return found

    def check(self, folder: Path) -> None:
        """Refuse numbers that no model has."""
        # Half of the buckets are for each direction, half of those for exact distances.
        least = {"token_types": 0, "relative_buckets": 4 if self.relative_buckets else 0, "pad_token": 0}
        sizes = ("layers", "width", "heads", "intermediate", "vocabulary", "positions", *least)
        for name in sizes:
            value = getattr(self, name)
            if type(value) is not int or not least.get(name, 1) <= value <= LARGEST:
                key = self.family.keys.get(name, "pad_token_id")
                raise UserError(
                    f"{folder}/config.json: {key} {value!r} is not a whole number from {least.get(name, 1)}: "
                    "fetch the model again"
                )
        if self.width % self.heads or self.max_tokens < 2 or self.pad_token >= self.vocabulary:
            raise UserError(
                f"{folder}/config.json: width {self.width}, {self.heads} heads, {self.positions} positions, "
                f"{self.vocabulary} tokens and padding {self.pad_token} do not fit together: fetch the model "
                "again"
            )
        if not isinstance(self.layer_norm_eps, float | int) or not 0 < self.layer_norm_eps < 1:
            raise UserError(
                f"{folder}/config.json: layer_norm_eps {self.layer_norm_eps!r} is not between 0 and 1: "
                "fetch the model again"
            )

    def hugging_face(self) -> dict[str, Any]:
        """Return the same shape as a Hugging Face config.json."""
        return {
            "architectures": [self.family.architecture],
            "model_type": self.family.model_type,
            **self.family.constants,
            **{theirs: getattr(self, ours) for ours, theirs in self.family.keys.items()},
            "initializer_range": 0.02,
            "pad_token_id": self.pad_token,
        }


class Layer(nn.Module):
    """A post-norm transformer layer on packed tokens, queries, keys and values in one product."""

    def __init__(self, config: EncoderConfig, relative: RelativeBias | None = None) -> None:
        super().__init__()
        width, eps = config.width, config.layer_norm_eps
        self.heads = config.heads
        self.relative = relative
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.up = nn.Linear(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width)
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        mixed = self.attention_out(self._attend(self.qkv(states), batch))
        states = _add_and_norm(states, mixed, self.attention_norm)
        return _add_and_norm(states, self.down(F.gelu(self.up(states))), self.norm)

    def _attend(self, qkv: Tensor, batch: Batch) -> Tensor:
        if (self.relative is None) != (batch.bias is None):
            raise ValueError("a batch brings the bias along that its encoder adds (`Encoder.with_bias`)")
        if batch.offsets is not None and varlen.handles(qkv, self.heads):
            return varlen.varlen_attention(qkv, batch.offsets, self.heads, batch.longest, batch.bias)
        width = qkv.shape[1] // 3
        # The bias of a shorter row is the corner of the longest row's.
        bias = None if batch.bias is None else by_places(batch.bias)
        parts = []
        for group in batch.groups:
            shape = (group.rows, group.length, 3, self.heads, width // self.heads)
            query, key, value = qkv[group.start : group.stop].view(shape).permute(2, 0, 3, 1, 4)
            corner = None if bias is None else bias[:, : group.length, : group.length]
            attended = attention(query, key, value, corner)
            parts.append(attended.transpose(1, 2).reshape(-1, width))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _add_and_norm(states: Tensor, addition: Tensor, norm: nn.LayerNorm) -> Tensor:
    """The norm of the sum, [N, D], as narrow as the states came: under autocast a norm gives float32."""
    if varlen.adds_and_norms(states, norm.weight):
        return varlen.add_norm(states, addition, norm.weight, norm.bias, norm.eps)
    out: Tensor = norm(states + addition)
    return out.to(states.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v, all [rows, heads, length, d], the bias [heads, length, length]."""
    length, width = query.shape[-2:]
    if query.device.type == "cpu" and length <= PLAIN_ATTENTION and torch.is_grad_enabled():
        # With its backward pass, PyTorch's fused CPU kernel takes twice as long on rows this short.
        scores = query * width**-0.5 @ key.transpose(-1, -2)
        return torch.softmax(scores if bias is None else scores + bias, -1) @ value
    mask = None if bias is None else bias.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Encoder(nn.Module):
    """Embeddings and layers, read after every layer."""

    def __init__(self, config: EncoderConfig, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.config = config
        self.pooling = pooling
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.positions, config.width)
        self.types = nn.Embedding(config.token_types, config.width) if config.token_types else None
        self.norm = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        buckets = config.relative_buckets
        relative = RelativeBias(buckets, config.heads, config.max_tokens) if buckets else None
        self.layers = nn.ModuleList(Layer(config, relative) for _ in range(config.layers))

    @property
    def packs(self) -> bool:
        """Tell whether it computes packed batches without groups, on a GPU in half precision."""
        heads_fit = self.config.width // self.config.heads in varlen.HEAD_SIZES
        return heads_fit and self.pooling == "mean"

    @property
    def weight(self) -> Tensor:
        """Return a parameter that says where the model lies and in what precision."""
        return self.words.weight

    def word_vectors(self) -> Tensor:
        return self.words.weight.detach()

    def embed(self, batch: Batch) -> Tensor:
        summed = self.words(batch.ids) + self.places(self._rows_of_places(batch))
        if self.types is not None:
            summed = summed + self.types.weight[0]
        out: Tensor = self.norm(summed)
        device = out.device.type
        return out.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else out

    def _rows_of_places(self, batch: Batch) -> Tensor:
        """Return each token's row in the table of positions, [N] int64.

        Where positions begin after padding's, a padding token that a text names stays at padding's and is not
        counted (transformers, `create_position_ids_from_input_ids`).
        """
        if not self.config.family.places_after_padding:
            return batch.positions
        pad = self.config.pad_token
        counted = (batch.ids != pad).long()
        until = counted.cumsum(0)
        starts = torch.arange(len(batch.ids), device=batch.ids.device) - batch.positions
        return (until - (until - counted)[starts]) * counted + pad

    def with_bias(self, batch: Batch) -> Batch:
        """Return a batch with the bias that all layers add to its scores, computed once; itself without one."""
        relative = self.layers[0].relative
        if not isinstance(relative, RelativeBias):
            return batch
        longest = batch.longest or max((group.length for group in batch.groups), default=1)
        return replace(batch, bias=relative(min(longest, relative.longest)))

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the rows' vectors by the model's own pooling, [N, D] to [B, D] float32."""
        return first_token(states, batch) if self.pooling == "cls" else mean_pool(states, batch)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the pooled vectors p_l of every layer, [L + 1, B, D] float32, not normalised.

        Rows are in the batch's order; index 0 is the embedding layer, index l is layer l.
        """
        batch, states = self.with_bias(batch), self.embed(batch)
        pooled = [self.pool(states, batch)]
        for layer in self.layers:
            states = layer(states, batch)
            pooled.append(self.pool(states, batch))
        return torch.stack(pooled)

    def walk(self, batch: Batch, visit: Visit) -> None:
        """Compute layer by layer; `leap.models.walk` says how."""
        batch, states = self.with_bias(batch), self.embed(batch)
        for number in range(len(self.layers) + 1):
            if number:
                states = self.layers[number - 1](states, batch)
            stays = visit(number, partial(self.pool, states, batch))
            if stays is not None:
                if not stays.any():
                    return
                batch, states = batch.keep(stays, states)
                batch = self.with_bias(batch)

    @classmethod
    def load(cls, folder: Path, layers: int | None = None) -> "Encoder":
        """Load `model.safetensors`, in float32; only the first `layers` where they are given.

        Raises:
            UserError: the folder is of another family or incomplete, or it has fewer layers.
        """
        config = EncoderConfig.load(folder)
        if layers is not None and not 1 <= layers <= config.layers:
            raise UserError(
                f"{folder} has {config.layers} layers, {layers} were asked for: name 1 to {config.layers}"
            )
        kept = replace(config, layers=config.layers if layers is None else layers)
        with torch.random.fork_rng(devices=[]):  # what it draws is read over: a seed's draws stay the caller's
            encoder = cls(kept, read_pooling(folder))
        weights = read_weights(folder, kept.family)
        check_depth(weights, kept.family, config.layers, folder)
        state = from_hugging_face(weights, kept.family, kept.layers, folder)
        check_shapes(state, encoder.state_dict(), folder)
        encoder.load_state_dict(state)
        return encoder.eval()

    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors as the family's own model loads them."""
        config = self.config.hugging_face() | {"dtype": str(self.weight.dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = to_hugging_face(self.state_dict(), self.config.family, self.config.layers)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def compile_layers(encoder: Encoder) -> None:
    """Compile an encoder's layers in place, for training on a GPU; all share one compiled function."""
    from torch._inductor import config as inductor  # takes a second, and only compiling needs it

    # Inductor's fused reduction ends in 60 slow sums a step here, a tenth of the time (torch 2.11).
    options = {"triton.mix_order_reduction": False}
    known = options if hasattr(inductor.triton, "mix_order_reduction") else None
    for layer in encoder.layers:
        layer.compile(dynamic=False, options=known)


def mean_pool(states: Tensor, batch: Batch) -> Tensor:
    """Return the mean over each row's tokens, [N, D] to [B, D] float32."""
    if batch.offsets is not None:
        return varlen.segment_mean(states, batch.offsets)
    if len(batch.groups) == 1:
        return states.view(batch.groups[0].rows, batch.groups[0].length, -1).mean(1, dtype=torch.float32)
    if states.device.type == "cpu" and states.dtype == torch.float32 and not torch.is_grad_enabled():
        # One kernel for all lengths: the loop over them costs as much as a tenth of a narrow layer.
        starts = batch.lengths.cumsum(0) - batch.lengths
        return F.embedding_bag(torch.arange(len(states)), states, starts, mode="mean")
    parts = [
        states[group.start : group.stop].view(group.rows, group.length, -1).mean(1, dtype=torch.float32)
        for group in batch.groups
    ]
    return torch.cat(parts)


def first_token(states: Tensor, batch: Batch) -> Tensor:
    """Return each row's first token (CLS), [N, D] to [B, D] float32."""
    parts = [states[group.start : group.stop : group.length] for group in batch.groups]
    return torch.cat(parts).float()
