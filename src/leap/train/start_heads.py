"""Exit heads before the training: linear maps from a model's layers to its last one, by least squares."""

import numpy as np
import torch
from torch import Tensor

from leap.models.least_squares import LeastSquares
from leap.train.teacher import Teacher

# A head has D x D numbers: some dozen rows a dimension are enough, whatever the size of the text.
MOST_ROWS = 20_000
ROWS_TOGETHER = 1024
RIDGE = 1e-3


@torch.no_grad()
def fit_start(teacher: Teacher, sentences: int, device: torch.device) -> Tensor:
    """Fit a map from each of the teacher's layers to its last one, by ridge regression.

    For a student that starts as its teacher, these are the best heads before the first step. The targets keep
    their length, so that a map's entries are of the layers' own scale.

    Args:
        teacher: gives all its layers from 1 to L.
        sentences: of the training text; at most MOST_ROWS of them are used, spread evenly.
        device: where the teacher computes.

    Returns:
        [L - 1, D, D] float32; a row vector p_l becomes p_l @ maps[l - 1].
    """
    places = [place for place, layer in enumerate(teacher.layers) if layer > 0]
    rows = np.linspace(0, sentences - 1, min(sentences, MOST_ROWS)).astype(np.int64)
    sums = LeastSquares()
    for start in range(0, len(rows), ROWS_TOGETHER):
        given = teacher.inputs(rows[start : start + ROWS_TOGETHER], fixed=False)
        given = given.to(device) if isinstance(given, Tensor) else given.map(lambda part: part.to(device))
        pooled = teacher.vectors(given)[places]
        sums.add(pooled[:-1], pooled[-1])
    return sums.solve(RIDGE)
