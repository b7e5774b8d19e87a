"""What calibration needs to know of each sentence at each layer: three small tables, in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.exits.calibrate.least_squares import LeastSquares
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.lens import Lens
from leap.exits.predictor import FEATURES, FIRST_LAYER, Predictor, layer_features
from leap.exits.rules import consecutive_similarity, similarity_to_final

# The features are few and the rows many: this only keeps a constant feature from making it singular.
PREDICTOR_RIDGE = 1e-9


@dataclass(frozen=True)
class Measured:
    """N sentences.

    consecutive: [L, N] float32, cos(p_l, p_{l-k}).
    features: [L - 1, N, 6] float32, of layers 2 to L.
    similarity: [L, N] float32, of what an exit would return (through the lens, if there is one) to p_L.
    """

    consecutive: Tensor
    features: Tensor
    similarity: Tensor

    @classmethod
    def of(cls, pooled: Tensor, patience: int, lens: Lens | None = None) -> "Measured":
        """Measures pooled layers, [L + 1, N, D] float32."""
        returned = pooled if lens is None else lens.mapped(pooled)
        return cls(consecutive_similarity(pooled, patience), layer_features(pooled), similarity_to_final(returned))

    def at(self, rows: Tensor) -> "Measured":
        """Some of the sentences; `rows` is [n] int64."""
        return Measured(self.consecutive[:, rows], self.features[:, rows], self.similarity[:, rows])

    def predicted(self, predictor: Predictor) -> Tensor:
        """The predictor's scores, [L, N], as `Predictor.scores` gives them."""
        found = torch.einsum("lnf,lf->ln", self.features, predictor.coefficients[FIRST_LAYER - 1 :])
        return torch.cat([torch.full_like(found[:1], -torch.inf), found])


def measure(
    model: LeapEncoder, sentences: Sequence[str], patience: int, lens: Lens | None, batch_size: int
) -> Measured:
    """Runs the model over the sentences; only a dozen numbers a sentence and layer are kept.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    depth, rows = model.depth, len(sentences)
    measured = Measured(torch.empty(depth, rows), torch.empty(depth - 1, rows, FEATURES), torch.empty(depth, rows))
    lens = lens and lens.to(model.device)
    for index, pooled in model.pooled_layers(sentences, batch_size, show_progress_bar=True):
        if not pooled.isfinite().all():
            raise UserError(f"{model.folder} gives vectors that are not finite: its weights are damaged")
        # Where the model is: beside an H200, 32 CPU cores came to 107 sentences a second.
        part = Measured.of(pooled.to(model.device), patience, lens)
        measured.consecutive[:, index] = part.consecutive.cpu()
        measured.features[:, index] = part.features.cpu()
        measured.similarity[:, index] = part.similarity.cpu()
    return measured


def fit_predictor(measured: Measured) -> Predictor:
    """The predictor of similarity to full depth: least squares, one a layer from 2 on."""
    sums = LeastSquares()
    sums.add(measured.features, measured.similarity[FIRST_LAYER - 1 :, :, None])
    fitted = sums.solve(PREDICTOR_RIDGE)[..., 0]
    return Predictor(torch.cat([torch.zeros(FIRST_LAYER - 1, FEATURES), fitted]))
