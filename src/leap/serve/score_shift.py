"""How far the scores of served sentences lie from those of the sentences that the exits were calibrated on.

Tested thresholds hold for sentences drawn like the calibration's (`leap.exits.calibrate.certify`). Other sentences
show first in the score at the first check of an exit rule, where every sentence is still there: it is counted in
the deciles that calibration.json records, and compared by the population stability index, sum (p - q) ln(p / q)
over the ten bins (Siddiqi, Credit Risk Scorecards, 2006; its rule of thumb: below 0.1 nothing changed, above 0.25
the population did).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leap.core.files import read_json
from leap.exits.calibration import COMMAND, FILE

BINS = 10
# Where a monitor warns while it serves; `leap monitor` judges by monitoring.max_score_shift.
LIMIT = 0.2
ENOUGH = 1000

Floats = NDArray[np.float64]


class ScoreReference:
    """The deciles of the consecutive similarity at every layer, as calibration saw them."""

    def __init__(self, patience: int, layers: Mapping[int, tuple[Floats, Floats]]) -> None:
        """Take k of the similarity, and for each layer nine edges and the share of each of the ten bins."""
        self.patience = patience
        self._layers = layers

    @classmethod
    def load(cls, folder: Path) -> "ScoreReference | None":
        """Read the folder's calibration.json; None where there is none, or none that records scores.

        Raises:
            UserError: the file was changed after it was written.
        """
        if not (folder / FILE).is_file():
            return None
        content = read_json(folder / FILE, COMMAND)
        try:
            layers = {
                int(row["layer"]): (np.array(row["edges"], float), np.array(row["shares"], float))
                for row in content["report"]["scores"]
            }
            return cls(int(content["patience"]), layers)
        except (KeyError, TypeError, ValueError):
            return None

    def counts(self, layer: int, scores: Tensor) -> tuple[Floats, Floats] | None:
        """Count scores [B] of a layer in the bins, and what calibration would have had there: [10] each."""
        if layer not in self._layers:
            return None
        edges, shares = self._layers[layer]
        values = scores.double().cpu().numpy()
        values = values[np.isfinite(values)]
        counted = np.bincount(np.searchsorted(edges, values, side="right"), minlength=BINS)
        return counted.astype(float), shares * len(values)


def stability_index(counted: Floats, expected: Floats) -> float | None:
    """Return the population stability index of two counts in the same bins; None where nothing was counted.

    Half a sentence is added to every bin, so that an empty one is no infinity.
    """
    if not counted.sum() or not expected.sum():
        return None
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (counted, expected))
    return float(((p - q) * np.log(p / q)).sum())
