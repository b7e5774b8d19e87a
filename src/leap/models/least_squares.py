"""Linear least squares on rows that come in batches: memory does not grow with their number."""

from collections.abc import Iterable

import torch
from torch import Tensor

from leap.core.one_thread import one_thread


class LeastSquares:
    """Accumulates X^T X and X^T Y in float64, for a stack of problems (one a layer)."""

    def __init__(self) -> None:
        self.rows = 0
        self._moments: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Add B rows to each of K problems: inputs [K, B, F], targets [K, B, T] or, for all alike, [B, T]."""
        inputs, targets = inputs.double(), targets.double()
        with one_thread():
            moments, products = inputs.mT @ inputs, inputs.mT @ targets
        if self._moments is None or self._products is None:
            self._moments, self._products = moments, products
        else:
            self._moments += moments
            self._products += products
        self.rows += inputs.shape[1]

    def solve(self, ridge: float) -> Tensor:
        """Return the W that minimise |X W - Y|^2 + ridge * m * |W|^2, [K, F, T] float32.

        m is the mean over the columns of X of their sum of squares, so `ridge` means the same for any number of
        rows and any scale.
        """
        assert self._moments is not None
        assert self._products is not None
        columns = self._moments.shape[-1]
        scale = self._moments.diagonal(dim1=-2, dim2=-1).mean(-1)
        # A column of zeros only (a dead layer) must not make the system singular.
        penalty = (ridge * scale).clamp_min(torch.finfo(torch.float64).tiny)
        eye = torch.eye(columns, dtype=torch.float64, device=scale.device)
        with one_thread():
            solution: Tensor = torch.linalg.solve(self._moments + penalty[:, None, None] * eye, self._products)
        return solution.float()


def solve_batches(batches: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """Return the coefficients for batches of inputs and targets, as `LeastSquares` takes and gives them."""
    sums = LeastSquares()
    for inputs, targets in batches:
        sums.add(inputs, targets)
    return sums.solve(ridge)
