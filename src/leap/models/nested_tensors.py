"""Tensors inside nested tuples, lists and mappings, as a layer takes and gives them."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

# Places and keys from the outermost container to a tensor.
Way = tuple[str | int, ...]


def tensors_in(value: Any, path: Way = ()) -> Iterator[tuple[Way, Tensor]]:
    """Yield the tensors of nested tuples, lists and mappings, each with the way to it."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, tuple | list):
        for place, item in enumerate(value):
            yield from tensors_in(item, (*path, place))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, (*path, key))


def replace_tensors(value: Any, tensors: dict[Way, Tensor], path: Way = ()) -> Any:
    """Return the same nested value with some tensors exchanged."""
    if isinstance(value, Tensor):
        return tensors.get(path, value)
    if isinstance(value, tuple | list):
        items = [replace_tensors(item, tensors, (*path, place)) for place, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if type(value) is dict:
        return {key: replace_tensors(item, tensors, (*path, key)) for key, item in value.items()}
    return value


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a layer's hidden states: its first argument, or the first tensor in its output."""
    if "hidden_states" in kwargs:
        states: Tensor = kwargs["hidden_states"]
        return states
    return next(tensor for _, tensor in tensors_in((args, kwargs)))
