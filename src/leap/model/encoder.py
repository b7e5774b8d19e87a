"""The encoder: a BERT-family transformer whose every layer can be read, stopped at and trained.

Its weights load from and save to Hugging Face's names (`BertModel`), so a folder works in both.
The own forward pass exists because exits need the layers one by one, on ragged batches without padding.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from leap.errors import UserError
from leap.model import varlen
from leap.model.batches import Batch

PLAIN_ATTENTION = 64


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder."""

    layers: int
    width: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int = 2
    layer_norm_eps: float = 1e-12

    @classmethod
    def load(cls, folder: Path) -> "EncoderConfig":
        """Reads a Hugging Face config.json.

        Raises:
            UserError: there is none, or it is of a family that this encoder does not compute.
        """
        try:
            config = json.loads((folder / "config.json").read_text())
        except FileNotFoundError:
            raise UserError(f"{folder} has no config.json: it is not a model folder") from None
        except ValueError as error:
            raise UserError(f"{folder}/config.json is not JSON ({error}): fetch the model again") from None
        family, act = config.get("model_type"), config.get("hidden_act")
        positions = config.get("position_embedding_type", "absolute")
        if family != "bert" or act != "gelu" or positions != "absolute":
            raise UserError(
                f"{folder}/config.json: model_type {family!r} with hidden_act {act!r} and {positions!r} "
                "positions is not supported; the encoder computes BERT and MiniLM models (bert, gelu, "
                "absolute)"
            )
        try:
            return cls(
                layers=config["num_hidden_layers"],
                width=config["hidden_size"],
                heads=config["num_attention_heads"],
                intermediate=config["intermediate_size"],
                vocabulary=config["vocab_size"],
                positions=config["max_position_embeddings"],
                token_types=config["type_vocab_size"],
                layer_norm_eps=config["layer_norm_eps"],
            )
        except KeyError as missing:
            raise UserError(f"{folder}/config.json lacks {missing}: it is not a whole BERT config") from None

    def hugging_face(self) -> dict[str, Any]:
        """The same shape as a Hugging Face config.json."""
        return {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "attention_probs_dropout_prob": 0.0,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": self.width,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.layer_norm_eps,
            "max_position_embeddings": self.positions,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": 0,
            "type_vocab_size": self.token_types,
            "vocab_size": self.vocabulary,
            "dtype": "float32",
        }


class Layer(nn.Module):
    """A post-norm transformer layer on packed tokens, queries, keys and values in one product."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.width, config.layer_norm_eps
        self.heads = config.heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.up = nn.Linear(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width)
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """[N, D] to [N, D]."""
        # Under autocast a norm gives float32; the states between the products stay as narrow as they came.
        dtype = states.dtype
        mixed = self.attention_out(self._attend(self.qkv(states), batch))
        states = self.attention_norm(states + mixed).to(dtype)
        out: Tensor = self.norm(states + self.down(F.gelu(self.up(states)))).to(dtype)
        return out

    def _attend(self, qkv: Tensor, batch: Batch) -> Tensor:
        if batch.offsets is not None and varlen.handles(qkv, self.heads):
            return varlen.varlen_attention(qkv, batch.offsets, self.heads, batch.longest)
        width = qkv.shape[1] // 3
        parts = []
        for group in batch.groups:
            shape = (group.rows, group.length, 3, self.heads, width // self.heads)
            query, key, value = qkv[group.start : group.stop].view(shape).permute(2, 0, 3, 1, 4)
            attended = attention(query, key, value)
            parts.append(attended.transpose(1, 2).reshape(-1, width))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, all [rows, heads, length, d]."""
    length, width = query.shape[-2:]
    if query.device.type == "cpu" and length <= PLAIN_ATTENTION:
        # PyTorch's fused CPU kernel takes twice as long on rows this short, forward and backward.
        return torch.softmax(query * width**-0.5 @ key.transpose(-1, -2), -1) @ value
    return F.scaled_dot_product_attention(query, key, value)


class Encoder(nn.Module):
    """Embeddings and layers, read after every layer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.positions, config.width)
        self.types = nn.Embedding(config.token_types, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def embed(self, batch: Batch) -> Tensor:
        """The tokens' embeddings, [N, D]."""
        summed = self.words(batch.ids) + self.places(batch.positions) + self.types.weight[0]
        out: Tensor = self.norm(summed)
        device = out.device.type
        return out.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else out

    def forward(self, batch: Batch) -> Tensor:
        """The mean-pooled vectors p_l of every layer.

        Returns:
            [L + 1, B, D] float32, not normalised, rows in the batch's order; index 0 is the embedding
            layer, index l is layer l.
        """
        states = self.embed(batch)
        pooled = [mean_pool(states, batch)]
        for layer in self.layers:
            states = layer(states, batch)
            pooled.append(mean_pool(states, batch))
        return torch.stack(pooled)

    @classmethod
    def load(cls, folder: Path, layers: int | None = None) -> "Encoder":
        """Loads `model.safetensors`, in float32.

        Args:
            folder: a Hugging Face or sentence-transformers folder of the BERT family.
            layers: keep only the first ones; all if None.

        Raises:
            UserError: the folder is of another family or incomplete, or it has fewer layers.
        """
        config = EncoderConfig.load(folder)
        if layers is not None and not 1 <= layers <= config.layers:
            raise UserError(f"{folder} has {config.layers} layers, {layers} were asked for")
        kept = replace(config, layers=config.layers if layers is None else layers)
        encoder = cls(kept)
        encoder.load_state_dict(_from_hugging_face(_read_weights(folder), kept, folder))
        return encoder.eval()

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors as `BertModel` loads them."""
        (folder / "config.json").write_text(json.dumps(self.config.hugging_face(), indent=2) + "\n")
        tensors = {name: tensor.contiguous() for name, tensor in _to_hugging_face(self).items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def compile_layers(encoder: Encoder) -> None:
    """Compiles an encoder's layers in place, for training on a GPU; all share one compiled function."""
    from torch._inductor import config as inductor  # takes a second, and only compiling needs it

    # Inductor's fused reduction ends in 60 slow sums a step here, a tenth of the time (torch 2.11).
    options = {"triton.mix_order_reduction": False}
    known = options if hasattr(inductor.triton, "mix_order_reduction") else None
    for layer in encoder.layers:
        layer.compile(dynamic=False, options=known)


def mean_pool(states: Tensor, batch: Batch) -> Tensor:
    """The mean over each row's tokens, [N, D] to [B, D] float32."""
    if batch.offsets is not None:
        return varlen.segment_mean(states, batch.offsets)
    parts = [
        states[group.start : group.stop].view(group.rows, group.length, -1).mean(1, dtype=torch.float32)
        for group in batch.groups
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
_QKV = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.exists():
        raise UserError(
            f"{folder} has no model.safetensors: pickle files are not read; save it as safetensors"
        )
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({error}): fetch or train it again"
        ) from None
    return {name.removeprefix("bert."): tensor.float() for name, tensor in weights.items()}


def _from_hugging_face(weights: dict[str, Tensor], config: EncoderConfig, folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    try:
        for ours, theirs in _EMBEDDINGS.items():
            for kind in ("weight", "bias") if ours == "norm" else ("weight",):
                state[f"{ours}.{kind}"] = weights[f"{theirs}.{kind}"]
        for number in range(config.layers):
            prefix = f"encoder.layer.{number}"
            for kind in ("weight", "bias"):
                parts = [weights[f"{prefix}.{part}.{kind}"] for part in _QKV]
                state[f"layers.{number}.qkv.{kind}"] = torch.cat(parts)
                for ours, theirs in _LAYER.items():
                    state[f"layers.{number}.{ours}.{kind}"] = weights[f"{prefix}.{theirs}.{kind}"]
    except KeyError as missing:
        raise UserError(f"{folder}/model.safetensors lacks {missing}: it is not a BERT encoder") from None
    return state


def _to_hugging_face(encoder: Encoder) -> dict[str, Tensor]:
    state = encoder.state_dict()
    named = {
        f"{theirs}.{kind}": state[f"{ours}.{kind}"]
        for ours, theirs in _EMBEDDINGS.items()
        for kind in (("weight", "bias") if ours == "norm" else ("weight",))
    }
    for number in range(encoder.config.layers):
        prefix = f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            for part, tensor in zip(_QKV, state[f"layers.{number}.qkv.{kind}"].chunk(3), strict=True):
                named[f"{prefix}.{part}.{kind}"] = tensor
            for ours, theirs in _LAYER.items():
                named[f"{prefix}.{theirs}.{kind}"] = state[f"layers.{number}.{ours}.{kind}"]
    return named
