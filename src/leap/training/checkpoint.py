"""A training's state on disk: whole or not at all, without pickle, and bound to what it was made from."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leap.files import whole_folder

log = logging.getLogger(__name__)


class TrainingState:
    """Saves and restores a module, its optimizer and the step, in a folder beside the outputs."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        """Prepares the state's folder.

        Args:
            folder: where it lies; it exists only while a training is unfinished.
            identity: settings, data, teacher and code that the training depends on.
        """
        self.folder = folder
        self.identity = identity

    def save(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, step: int, history: list[dict[str, Any]]
    ) -> None:
        """Replaces the saved state by the present one."""
        with whole_folder(self.folder) as beside:
            tensors = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
            for index, entries in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in entries.items()
                }
            save_file(
                {key: tensor.contiguous() for key, tensor in tensors.items()}, beside / "state.safetensors"
            )
            content = {"identity": self.identity, "step": step, "history": history}
            (beside / "state.json").write_text(json.dumps(content))

    def restore(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, list[dict[str, Any]]]:
        """Loads what an interrupted run left.

        Returns:
            The steps done and the history so far; 0 and nothing where there is no state to go on from.
        """
        path = self.folder / "state.json"
        if not path.exists():
            return 0, []
        content = json.loads(path.read_text())
        changed = sorted(key for key in self.identity if content["identity"].get(key) != self.identity[key])
        if changed:
            log.warning("%s is of another run (%s changed): starting anew", self.folder, ", ".join(changed))
            return 0, []
        tensors = load_file(self.folder / "state.safetensors")
        module.load_state_dict(_part(tensors, "module."))
        state = optimizer.state_dict()
        state["state"] = {}
        for name, tensor in _part(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            state["state"].setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict(state)
        log.info("going on at step %d of the interrupted run", content["step"])
        return content["step"], content["history"]

    def clear(self) -> None:
        """Removes the state of a training that is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
