"""A calibration: a threshold a layer that `leap calibrate` tested on held-out sentences (leap.exits.calibrate).

It lies next to the weights as calibration.json and is bound to them, and to the exit heads that it was made with.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of, write_with_checksum
from leap.exits.predictor import FEATURES, FIRST_LAYER, LOOKBACK, Predictor
from leap.models import exit_heads
from leap.models.bound_files import check_weights
from leap.models.folder import hash_weights

FILE = "calibration.json"
COMMAND = "leap calibrate MODEL --sentences FILE"


@dataclass(frozen=True)
class Calibration:
    """The exits of strategy `calibrated`.

    thresholds: [L] float32; infinity where no row leaves, and always at L.
    patience: k of the consecutive similarity cos(p_l, p_{l-k}).
    predictor: the score where it is not the consecutive similarity.
    """

    thresholds: Tensor
    patience: int
    predictor: Predictor | None

    @property
    def score(self) -> str:
        return "consecutive" if self.predictor is None else "predicted"

    @property
    def lookback(self) -> int:
        return self.patience if self.predictor is None else LOOKBACK

    @property
    def min_layer(self) -> int:
        """The first layer that a row may leave at; L where none leaves early."""
        layers = (layer for layer, value in enumerate(self.thresholds.tolist(), 1) if value < torch.inf)
        return next(layers, len(self.thresholds))

    def to(self, device: torch.device) -> "Calibration":
        return replace(self, predictor=self.predictor and self.predictor.to(device))

    def save(self, folder: Path, report: dict[str, Any]) -> None:
        """Write calibration.json next to the folder's weights and exit heads, whole or not at all.

        `report` is the demand and its outcome, for a person and for `leap monitor`.
        """
        content = {
            "weights": hash_weights(folder),
            "heads": _hash_heads(folder),
            "score": self.score,
            "patience": self.patience,
            "min_layer": self.min_layer,
            # JSON has no infinity: null is a layer that no row leaves at.
            "thresholds": [value if value < torch.inf else None for value in self.thresholds.tolist()],
            "coefficients": self.predictor and self.predictor.coefficients.tolist(),
            "report": report,
        }
        write_with_checksum(folder / FILE, content)

    @classmethod
    def load(cls, folder: Path, depth: int) -> "Calibration":
        """Read the folder's calibration; refuse one of other weights or heads, or that is not well-formed."""
        path = folder / FILE
        content = read_json(path, COMMAND)
        if not isinstance(content, dict):
            raise UserError(f"{path} is not a calibration: `{COMMAND}` writes it")
        check_weights(path, content.get("weights"), f"`{COMMAND}` makes it again")
        if content.get("heads") != _hash_heads(folder):
            raise UserError(f"{path} was made with other exit heads than the folder's: `{COMMAND}` makes it again")
        try:
            return _parse(content, depth)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} does not fit a model of {depth} layers ({error}): `{COMMAND}` makes it again"
            ) from None


def _hash_heads(folder: Path) -> str | None:
    path = folder / exit_heads.FILE
    return sha256_of(path) if path.is_file() else None


def _parse(content: dict[str, Any], depth: int) -> Calibration:
    values = [torch.inf if value is None else value for value in content["thresholds"]]
    thresholds = torch.tensor(values, dtype=torch.float32)
    if thresholds.shape != (depth,) or thresholds.isnan().any() or thresholds[-1] != torch.inf:
        raise ValueError(f"thresholds must be {depth} numbers or nulls, the last one null")
    predictor = None
    if content["score"] == "predicted":
        coefficients = torch.tensor(content["coefficients"], dtype=torch.float32)
        if coefficients.shape != (depth, FEATURES):
            raise ValueError(f"coefficients must be {depth} rows of {FEATURES} numbers")
        predictor = Predictor(coefficients)
    elif content["score"] != "consecutive":
        raise ValueError(f"score must be consecutive or predicted, found {content['score']!r}")
    calibration = Calibration(thresholds, int(content["patience"]), predictor)
    first = FIRST_LAYER if predictor else calibration.patience + 1
    if calibration.patience < 1 or calibration.min_layer < min(first, depth):
        raise ValueError(f"a threshold lies below layer {first}, the first that has a score")
    return calibration
