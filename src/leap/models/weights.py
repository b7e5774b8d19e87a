"""An encoder's weights by Hugging Face's names and by ours."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from leap.core.errors import UserError
from leap.models.families import Family
from leap.models.folder import WEIGHTS, ModelFolder, check_types

State = dict[str, Tensor]

# Checkpoints that began as TensorFlow's (bert-base-uncased) name a norm's weight and bias so.
_OLD_NORM = {"gamma": "weight", "beta": "bias"}


def read_weights(folder: Path, family: Family) -> State:
    """Read the tensors of model.safetensors, or of its shards, in float32, without a prefix of theirs.

    Raises:
        UserError: there is no such file, it is damaged, or its numbers are quantized or not finite.
    """
    paths = ModelFolder.read(folder).weights
    if not paths:
        raise UserError(f"{folder} has no {WEIGHTS}: pickle files are not read; save it as safetensors")
    weights: State = {}
    for path in paths:
        for name, tensor in _read_file(path).items():
            weights[_plain(name.removeprefix(family.prefix))] = tensor
    return weights


def tensor_layout(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Read each tensor's type, as safetensors names it, and shape; UserError where the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (tensor.get_dtype(), tensor.get_shape()) for name, tensor in slices.items()}
    except SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}): fetch or train it again") from None


def tensor_types(path: Path) -> dict[str, str]:
    """Read each tensor's type; errors as `tensor_layout`."""
    return {name: kind for name, (kind, _) in tensor_layout(path).items()}


def _read_file(path: Path) -> State:
    check_types(path, tensor_types(path))
    tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
    for name, tensor in tensors.items():
        check_finite(path, name, tensor)
    return tensors


def check_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a weight with NaN or infinity; in half precision, one that was finite in float32."""
    # A sum is not finite where a part is not, and is read once.
    if not tensor.sum().isfinite() and not tensor.isfinite().all():
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise UserError(
                f"{path}: {name} holds numbers that {tensor.dtype} cannot: open the model with "
                "model_kwargs={'dtype': 'float32'}"
            )
        raise UserError(
            f"{path}: {name} holds numbers that are not finite (NaN or infinity): the model is damaged; fetch or "
            "train it again"
        )


def from_hugging_face(weights: State, family: Family, layers: int, folder: Path) -> State:
    """Return our state dict of the first layers of a checkpoint; refuse one that lacks a weight."""
    state: State = {}
    try:
        for ours, theirs in _plain_names(family, layers):
            state[ours] = weights[theirs]
        for ours, parts in _joined_names(family, layers):
            state[ours] = torch.cat([weights[part] for part in parts])
    except KeyError as missing:
        raise UserError(
            f"{folder}/model.safetensors lacks {missing}: it is not a {family.architecture}: fetch the model again"
        ) from None
    return state


def check_depth(weights: State, family: Family, layers: int, folder: Path) -> None:
    """Refuse weights that have more layers than config.json says: the last one would be the wrong one."""
    start = f"{family.layers}."
    numbers = {name.removeprefix(start).split(".", 1)[0] for name in weights if name.startswith(start)}
    depth = max((int(number) for number in numbers if number.isdigit()), default=-1) + 1
    if depth > layers:
        raise UserError(
            f"{folder}/config.json says {layers} layers, model.safetensors has {depth}: they are not of one "
            "model; fetch or train it again"
        )


def check_shapes(state: State, wanted: State, folder: Path) -> None:
    """Refuse weights of another shape than config.json says."""
    for name, tensor in wanted.items():
        if name in state and state[name].shape != tensor.shape:
            raise UserError(
                f"{folder}/model.safetensors: {name} is {list(state[name].shape)}, config.json wants "
                f"{list(tensor.shape)}: they are not of one model; fetch or train it again"
            )


def to_hugging_face(state: State, family: Family, layers: int) -> State:
    """Return the weights by Hugging Face's names."""
    named = {theirs: state[ours] for ours, theirs in _plain_names(family, layers)}
    for ours, parts in _joined_names(family, layers):
        named |= zip(parts, state[ours].chunk(3), strict=True)
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _plain_names(family: Family, layers: int) -> list[tuple[str, str]]:
    names = []
    for ours, theirs in family.embeddings.items():
        kinds = ("weight", "bias") if ours == "norm" else ("weight",)
        names += [(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in kinds]
    for number in range(layers):
        for kind in ("weight", "bias"):
            names += [
                (f"layers.{number}.{ours}.{kind}", f"{family.layers}.{number}.{theirs}.{kind}")
                for ours, theirs in family.layer.items()
            ]
        if family.relative_bias:  # one table, shared by all layers
            names.append((f"layers.{number}.relative.table.weight", f"{family.relative_bias}.weight"))
    return names


def _joined_names(family: Family, layers: int) -> list[tuple[str, list[str]]]:
    return [
        (f"layers.{number}.qkv.{kind}", [f"{family.layers}.{number}.{part}.{kind}" for part in family.qkv])
        for number in range(layers)
        for kind in ("weight", "bias")
    ]


def _plain(name: str) -> str:
    stem, _, last = name.rpartition(".")
    return f"{stem}.{_OLD_NORM[last]}" if last in _OLD_NORM else name
