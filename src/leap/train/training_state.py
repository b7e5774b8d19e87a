"""A training's state on disk: whole or not at all, without pickle, and bound to what it was made from."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leap.core.files import whole_file
from leap.core.tensor_files import DamagedError, load_with_checksum, save_with_checksum

log = logging.getLogger(__name__)


class TrainingState:
    """Saves and restores a module, its optimizer and the step.

    The rate and the order of the batches follow from the step, and nothing else in the training is random.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], keep: int = 2) -> None:
        """Name the place of the states.

        Args:
            folder: holds a file a state; it exists only while a training is unfinished.
            identity: settings, data, teacher and code that the training depends on.
            keep: how many states stay, the newest.
        """
        self.folder, self.identity, self.keep = folder, identity, keep

    def save(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, step: int, history: list[dict[str, Any]]
    ) -> None:
        """Add the present state, and remove what is more than `keep`."""
        tensors = {f"module.{name}": tensor for name, tensor in _once(module).items()}
        for index, entries in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in entries.items()}
        content = json.dumps({"identity": self.identity, "step": step, "history": history})
        with whole_file(self.folder / f"step-{step:08d}.safetensors") as temporary:
            save_with_checksum(tensors, temporary, {"state": content})
        for old in self._states()[self.keep :]:
            old.unlink()

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
        """Load the newest state of an interrupted run that can be read.

        Returns:
            The steps done and the history so far; 0 and nothing where there is no state to go on from.
        """
        for path in self._states():
            try:
                tensors, notes = load_with_checksum(path)
            except (OSError, DamagedError) as error:
                log.warning("%s cannot be read (%s): going back to the one before", path, error)
                continue
            content = json.loads(notes["state"])
            saved = content["identity"]
            changed = sorted(key for key in self.identity if saved.get(key) != self.identity[key])
            if changed:
                log.warning("%s is of another run (%s changed): starting again", path, ", ".join(changed))
                self.clear()
                return 0, []
            weights = _part(tensors, "module.")
            if weights.keys() != _once(module).keys():
                raise RuntimeError(f"{path} holds other weights than the module, whose identity it has")
            module.load_state_dict(weights, strict=False)
            state = optimizer.state_dict()
            state["state"] = {}
            for name, tensor in _part(tensors, "optimizer.").items():
                index, key = name.split(".", 1)
                state["state"].setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict(state)
            log.info("going on at step %d of the interrupted run", content["step"])
            return content["step"], content["history"]
        return 0, []

    def clear(self) -> None:
        """Remove the states of a training that is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _states(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)  # the newest first


def _once(module: nn.Module) -> dict[str, Tensor]:
    """A module's tensors, one that several layers share (MPNet's bias by relative position) once."""
    names: dict[int, str] = {}
    state: dict[str, Tensor] = module.state_dict()
    for name, tensor in state.items():
        names.setdefault(tensor.data_ptr(), name)
    return {name: state[name] for name in names.values()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
