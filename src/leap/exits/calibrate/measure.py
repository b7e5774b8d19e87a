"""Measures each sentence at each layer: three small tables, and the vectors of those that search one another."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.predictor import FEATURES, FIRST_LAYER, Predictor, layer_features
from leap.exits.rules import consecutive_similarity, similarity_to_final
from leap.models.exit_heads import ExitHeads
from leap.models.least_squares import LeastSquares

# The features are few and the rows many: this only keeps a constant feature from making it singular.
PREDICTOR_RIDGE = 1e-9


@dataclass(frozen=True)
class Measured:
    """N sentences.

    consecutive: [L, N] float32, cos(p_l, p_{l-k}).
    features: [L - 1, N, 6] float32, of layers 2 to L.
    similarity: [L, N] float32, of what an exit would return (through the exit heads, if there are any) to p_L.
    """

    consecutive: Tensor
    features: Tensor
    similarity: Tensor

    @classmethod
    def of(cls, pooled: Tensor, patience: int, returned: Tensor | None = None) -> "Measured":
        """Measure pooled layers, [L + 1, N, D] float32.

        `returned` is what exits there give, [L + 1, N, d], `pooled` if None.
        """
        returned = pooled if returned is None else returned
        return cls(consecutive_similarity(pooled, patience), layer_features(pooled), similarity_to_final(returned))

    def at(self, rows: Tensor) -> "Measured":
        return Measured(self.consecutive[:, rows], self.features[:, rows], self.similarity[:, rows])

    def predict(self, predictor: Predictor) -> Tensor:
        scores = torch.einsum("lnf,lf->ln", self.features, predictor.coefficients[FIRST_LAYER - 1 :])
        return torch.cat([torch.full_like(scores[:1], -torch.inf), scores])


def measure(
    model: LeapEncoder,
    sentences: Sequence[str],
    patience: int,
    heads: ExitHeads | None,
    batch_size: int,
    searching: Tensor,
) -> tuple[Measured, Tensor]:
    """Run the model over N sentences; memory grows by a dozen numbers a sentence and layer.

    Args:
        model: the encoder.
        sentences: N texts.
        patience: k of the consecutive similarity.
        heads: maps what an exit returns; None for none.
        batch_size: rows computed together.
        searching: [n] int64, the sentences whose vectors are returned.

    Returns:
        The tables, and [L, n, D] float32: what an exit at each layer returns for `searching`.

    Raises:
        UserError: the model gives vectors that are not finite.
    """
    depth, rows = model.depth, len(sentences)
    measured = Measured(torch.empty(depth, rows), torch.empty(depth - 1, rows, FEATURES), torch.empty(depth, rows))
    vectors = torch.empty(depth, len(searching), model.get_embedding_dimension())
    place = torch.full((rows,), -1)
    place[searching] = torch.arange(len(searching))
    heads = heads and heads.to(model.device)
    for index, layers in model.pooled_layers(sentences, batch_size, show_progress_bar=True):
        if not layers.isfinite().all():
            raise UserError(
                f"{model.folder} gives vectors that are not finite: its weights are damaged, train or fetch "
                "it again"
            )
        # Where the model is: next to an H200, 32 CPU cores came to 107 sentences a second.
        pooled = layers.to(model.device)
        returned = (pooled if heads is None else heads.mapped(pooled))[..., : model.truncate_dim]
        part = Measured.of(pooled, patience, returned)
        measured.consecutive[:, index] = part.consecutive.cpu()
        measured.features[:, index] = part.features.cpu()
        measured.similarity[:, index] = part.similarity.cpu()
        wanted = place[index] >= 0
        if wanted.any():
            vectors[:, place[index][wanted]] = returned[1:, wanted.to(pooled.device)].cpu()
    return measured, vectors


def fit_predictor(measured: Measured) -> Predictor:
    """Fit the predictor of similarity to full depth: least squares, one a layer from 2 on."""
    sums = LeastSquares()
    sums.add(measured.features, measured.similarity[FIRST_LAYER - 1 :, :, None])
    fitted = sums.solve(PREDICTOR_RIDGE)[..., 0]
    return Predictor(torch.cat([torch.zeros(FIRST_LAYER - 1, FEATURES), fitted]))
