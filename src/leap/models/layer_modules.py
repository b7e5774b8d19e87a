"""Which modules of a transformers model are its layers, found by what they give on made rows.

Layer l is the outermost module whose output is the model's own l-th hidden state. transformers gives the last
hidden state behind a norm where the model ends with one; then the last layer is the next call of the same kind.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leap.models.nested_tensors import tensors_in


class NoLayersError(Exception):
    """A model's layers cannot be found; the message ends a sentence about the model."""


@dataclass(frozen=True)
class LayerModules:
    """The modules that give hidden states 1 to L, a shared one several times, and the norm behind the last one."""

    layers: list[nn.Module]
    norm: nn.Module | None


@dataclass(frozen=True)
class _Call:
    """One call of a module during a forward pass, the hidden states that it took, and those that it gave."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor

    @property
    def depth(self) -> int:
        return self.name.count(".")


def find_layers(model: nn.Module, inputs: dict[str, Tensor]) -> LayerModules:
    """Find a model's layers by one forward pass.

    Args:
        model: of transformers, without a head.
        inputs: a batch with padding.

    Raises:
        NoLayersError: no modules give its hidden states one by one, or these are not finite.
        Exception: whatever the architecture raises when it is run.
    """
    with _calls_of(model) as calls:
        output = model(**inputs, output_hidden_states=True, return_dict=True)
    hidden, last = list(output.hidden_states or ()), output.last_hidden_state
    if len(hidden) < 2 or any(states.shape != last.shape for states in hidden[1:]):
        raise NoLayersError("transformers gives no hidden state of the same tokens for every layer")
    depth, places = len(hidden) - 1, list[int]()
    for states in hidden[1:]:
        place = _outermost(calls, places, states)
        if place is None:
            break
        places.append(place)
    layers = [calls[place] for place in places]
    if len(layers) < depth - 1:
        raise NoLayersError(f"hidden state {len(layers) + 1} is not what one of its modules gives")
    if depth == 1:
        return _one_layer(calls, *hidden)
    if torch.equal(hidden[depth], last) and len(layers) == depth and _are_alike(layers):
        return LayerModules([call.module for call in layers], None)
    return _with_norm(layers[: depth - 1], calls[places[depth - 2] + 1 :], last)


@contextmanager
def _calls_of(model: nn.Module) -> Iterator[list[_Call]]:
    """Note every call of a module within the block, in the order in which they end."""
    calls: list[_Call] = []
    names = {module: name for name, module in model.named_modules() if module is not model}

    def note(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        tensor = next((tensor for _, tensor in tensors_in(output)), None)
        if tensor is not None and tensor.is_floating_point():
            given = kwargs.get("hidden_states", next((tensor for _, tensor in tensors_in(args)), None))
            calls.append(_Call(names[module], module, given, tensor))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in names]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _outermost(calls: list[_Call], places: list[int], states: Tensor) -> int | None:
    """The place of the outermost call after the last layer's that gave the next layer's hidden state."""
    inside, start = [calls[place] for place in places], places[-1] + 1 if places else 0
    equal = [n for n in range(start, len(calls)) if _gave(calls[n], states) and not _holds(calls[n], inside)]
    return min(equal, key=lambda place: (calls[place].depth, place), default=None)


def _with_norm(before: list[_Call], behind: list[_Call], last: Tensor) -> LayerModules:
    """The last layer and the norm among the calls behind the other layers."""
    kind = type(before[-1].module)
    place = next(
        (n for n, call in enumerate(behind) if type(call.module) is kind and _are_alike([*before, call])), None
    )
    if place is None:
        raise NoLayersError("its last layer is not like the others")
    norm = _norm_of(behind[place], [call for call in behind[place + 1 :] if not _holds(call, before)], last)
    if norm is None:
        raise NoLayersError("between its last layer and its vectors lies more than one norm")
    return LayerModules([call.module for call in [*before, behind[place]]], norm)


def _one_layer(calls: list[_Call], embeddings: Tensor, last: Tensor) -> LayerModules:
    """The outermost module that takes the embeddings and gives the model's output, by itself or through a norm."""
    for place in sorted(range(len(calls)), key=lambda place: (calls[place].depth, place)):
        layer = calls[place]
        given = layer.input
        if given is None or given.shape != embeddings.shape or not torch.equal(given, embeddings):
            continue
        if _gave(layer, last):
            return LayerModules([layer.module], None)
        if (norm := _norm_of(layer, calls[place + 1 :], last)) is not None:
            return LayerModules([layer.module], norm)
    raise NoLayersError("no module takes its embeddings and gives its hidden state")


def _norm_of(layer: _Call, later: list[_Call], last: Tensor) -> nn.Module | None:
    """The outermost module that makes the model's last hidden state of what a layer gave."""
    givers = sorted((call for call in later if _gave(call, last)), key=lambda call: call.depth)
    return next((call.module for call in givers if torch.equal(_call(call.module, layer.output), last)), None)


def _holds(call: _Call, inside: list[_Call]) -> bool:
    """Say whether a module contains others; a container of all layers ends with the last one."""
    return any(other.name.startswith(f"{call.name}.") for other in inside)


def _gave(call: _Call, states: Tensor) -> bool:
    return call.output.shape == states.shape and torch.equal(call.output, states)


def _call(module: nn.Module, states: Tensor) -> Tensor:
    """Call a module with hidden states; return an empty tensor where it wants other arguments."""
    try:
        output = module(states)
    except Exception:  # noqa: BLE001 - a module of other arguments is not the norm
        return torch.empty(0)
    return output if isinstance(output, Tensor) else torch.empty(0)


def _are_alike(calls: Sequence[_Call]) -> bool:
    """Say whether modules are items of one list, or one module called again."""
    return len({call.name.rpartition(".")[0] for call in calls}) == 1
