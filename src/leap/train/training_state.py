"""A training's state on disk: whole or not at all, without pickle, and bound to what it was made from."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leap.core.files import seal, sha256_of, was_changed, whole_folder

log = logging.getLogger(__name__)

TENSORS = "state.safetensors"


class TrainingState:
    """Saves and restores a module, its optimizer and the step, in a folder beside the outputs.

    The rate and the order of the batches follow from the step, and nothing else in the training is random, so
    the step is all there is to keep of them.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], keep: int = 2) -> None:
        """Prepares the state's folder.

        Args:
            folder: where the states lie, one folder each; it exists only while a training is unfinished.
            identity: settings, data, teacher and code that the training depends on.
            keep: how many states stay, the newest.
        """
        self.folder, self.identity, self.keep = folder, identity, keep

    def save(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, step: int, history: list[dict[str, Any]]
    ) -> None:
        """Adds the present state, and removes what is more than `keep`."""
        with whole_folder(self.folder / f"step-{step:08d}") as beside:
            tensors = {f"module.{name}": tensor for name, tensor in _once(module).items()}
            for index, entries in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in entries.items()}
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, beside / TENSORS)
            content = {"identity": self.identity, "step": step, "history": history}
            content["tensors"] = sha256_of(beside / TENSORS)
            (beside / "state.json").write_text(json.dumps(content | {"seal": seal(content)}))
        for old in self._states()[self.keep :]:
            shutil.rmtree(old)

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, list[dict[str, Any]]]:
        """Loads what an interrupted run left: its newest state that can be read.

        Returns:
            The steps done and the history so far; 0 and nothing where there is no state to go on from.
        """
        for folder in self._states():
            try:
                content = _read(folder)
                tensors = load_file(folder / TENSORS)
            except (OSError, ValueError, SafetensorError) as error:
                log.warning("%s cannot be read (%s): going back to the one before", folder, error)
                continue
            saved = content["identity"]
            changed = sorted(key for key in self.identity if saved.get(key) != self.identity[key])
            if changed:
                log.warning("%s is of another run (%s changed): starting anew", folder, ", ".join(changed))
                self.clear()
                return 0, []
            weights = _part(tensors, "module.")
            if weights.keys() != _once(module).keys():
                raise RuntimeError(f"{folder} holds other weights than the module, whose identity it has")
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
        """Removes the state of a training that is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _states(self) -> list[Path]:
        """The saved states, the newest first."""
        return sorted(self.folder.glob("step-*"), reverse=True)


def _read(folder: Path) -> dict[str, Any]:
    """A state's state.json, if it and the tensors are what was written."""
    content: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if not isinstance(content, dict) or "seal" not in content or was_changed(content):
        raise ValueError("state.json was changed after it was written")
    if sha256_of(folder / TENSORS) != content["tensors"]:
        raise ValueError(f"{TENSORS} was changed after it was written")
    return content


def _once(module: nn.Module) -> dict[str, Tensor]:
    """A module's tensors, one that several layers share (MPNet's bias by relative position) once."""
    found: dict[int, str] = {}
    state: dict[str, Tensor] = module.state_dict()
    for name, tensor in state.items():
        found.setdefault(tensor.data_ptr(), name)
    return {name: state[name] for name in found.values()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
