"""Predictors of an exit's similarity to full depth, in DeeBERT's style: one a layer, fitted on the frozen student.

DeeBERT (Xin et al., ACL 2020) adds a linear classifier to every layer and trains it in a second stage. A
sentence vector has no class, so a predictor gives what an exit needs to know: cos(p_l, p_L), from p_l alone.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.models.bound_files import load_bound, save_bound

FILE = "predictors.safetensors"
MADE_BY = "`exit.predictors: true` in the settings fits them in stage calibrate"


@dataclass(frozen=True)
class Predictors:
    """The predictors of layers 1 to L - 1.

    weight: [L - 1, D] float32, on the unit vector of the layer.
    bias: [L - 1] float32.
    """

    weight: Tensor
    bias: Tensor

    def predict(self, layer: int, pooled: Tensor) -> Tensor:
        """Return the predicted cos(p_l, p_L), [B]; `pooled` is [B, D], `layer` counted from 1 and below L."""
        return F.normalize(pooled, dim=-1) @ self.weight[layer - 1] + self.bias[layer - 1]

    def scores(self, pooled: Tensor) -> Tensor:
        """Return the same for all layers at once, [L + 1, N, D] to [L, N]; minus infinity at L: it has none."""
        unit = F.normalize(pooled[1:-1], dim=-1)
        below = torch.einsum("lnd,ld->ln", unit, self.weight) + self.bias[:, None]
        return torch.cat([below, torch.full_like(below[:1], -torch.inf)])

    def to(self, device: torch.device) -> "Predictors":
        return Predictors(self.weight.to(device), self.bias.to(device))

    def save(self, folder: Path) -> None:
        """Write predictors.safetensors next to the folder's weights."""
        save_bound({"weight": self.weight, "bias": self.bias}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, depth: int, width: int) -> "Predictors":
        """Read the folder's predictors; refuse those of other weights."""
        shapes = {"weight": (depth - 1, width), "bias": (depth - 1,)}
        return cls(**load_bound(folder / FILE, shapes, MADE_BY))
