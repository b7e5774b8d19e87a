"""Tensors saved next to a model's weights and bound to them: those of other weights are refused by name."""

from pathlib import Path

from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.tensor_files import DamagedError, load_with_checksum, save_with_checksum
from leap.models.folder import hash_weights


def save_bound(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file, whole or not at all, that names the sha256 of the weights in its folder."""
    metadata = {"weights": hash_weights(path.parent)}
    with whole_file(path) as temporary:
        save_with_checksum({name: tensor.cpu() for name, tensor in tensors.items()}, temporary, metadata)


def load_bound(path: Path, shapes: dict[str, tuple[int, ...]], made_by: str) -> dict[str, Tensor]:
    """Read the tensors of these shapes that `save_bound` wrote; `made_by` is the way out, for the error.

    Raises:
        UserError: the file is missing, damaged, of other weights or of another shape.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: {made_by}")
    try:
        tensors, metadata = load_with_checksum(path)
    except DamagedError as error:
        raise UserError(f"{path} is damaged, {error}: {made_by}") from None
    check_weights(path, metadata.get("weights"), made_by)
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if actual != shapes:
        raise UserError(f"{path} does not fit the model: expected {shapes}, found {actual}: {made_by}")
    return tensors


def check_weights(path: Path, named: object, made_by: str) -> None:
    """Refuse a file that does not name the weights in its folder."""
    actual = hash_weights(path.parent)
    if named != actual:
        raise UserError(
            f"{path} was made from other weights (sha256 {named}) than those next to it ({actual}): {made_by}"
        )
