"""sentence-transformers' AdaptiveLayerLoss on the same data and teacher: a rival that trains exits too.

Importing this module imports sentence-transformers, which takes seconds: `objective` does so only for this loss.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, EmbedDistillLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn

from leap.core.settings.training import AdaptiveLayerSettings
from leap.train.objective import terms
from leap.train.objective.objective import Gather, Objective


class AdaptiveLayer(Objective):
    """The library's AdaptiveLayerLoss around its EmbedDistillLoss, on the layers that our encoder has computed.

    Every step trains the final layer and the layers that the library draws, layer 0 (the embeddings) among them;
    their weights and the KL term towards the final layer are the library's, on vectors of length 1. The base loss
    is that of our other students without its layer terms: 1 - cos to the teacher's final vector (EmbedDistillLoss)
    + delta L_contrast. Source: sentence_transformers, sentence_transformer/losses/adaptive_layer.py (2DMSE,
    arXiv 2402.14776).

    The library draws by Python's generator. It is seeded by the training's seed and the place in the training, so
    that all processes draw alike and a resumed training draws as one that was not interrupted.
    """

    captures = False

    def __init__(
        self,
        settings: AdaptiveLayerSettings,
        layers: int,
        width: int,
        teacher_width: int,
        gather: Gather | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(layers, width, teacher_width, gather)
        self.seed = seed
        modules: list[nn.Module] = [_ComputedLayers(), Pooling(width), Normalize()]
        model = SentenceTransformer(modules=modules, device="cpu")
        self.base = _BaseLoss(model, settings, self.projection, self.gather)
        arguments = settings.model_dump(exclude={"kind", "delta", "tau_c"})
        self.library = AdaptiveLayerLoss(model, self.base, **arguments)

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a batch; see `Objective.forward`. Waits for `progress`.

        Terms: final, contrast (where delta is above 0), both of the final layer, and prior, the base loss's mean
        over the drawn layers before their weights. The library does not show its KL term.
        """
        self.base.calls.clear()
        layers = pooled.float().unsqueeze(2).unbind(0)
        with _seeded(f"{self.seed} {float(progress)}"):
            total: Tensor = self.library([{"all_layer_embeddings": layers}], teacher[-1])
        (_, final), *drawn = self.base.calls
        return total, final | {"prior": torch.stack([value for value, _ in drawn]).mean()}


class _ComputedLayers(Transformer):
    """The library's transformer with its layers computed before: pooled vectors, as sentences of one token."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # the library's would load a model
        self.model: Any = SimpleNamespace(config=SimpleNamespace(output_hidden_states=False))

    def forward(self, features: dict[str, Any], **ignored: Any) -> dict[str, Any]:
        return {**features, "token_embeddings": features["all_layer_embeddings"][-1]}


class _BaseLoss(EmbedDistillLoss):
    """1 - cos to the teacher's vectors, through our projection, + delta L_contrast.

    calls: of every call its value and its terms, detached.
    """

    def __init__(
        self, model: SentenceTransformer, settings: AdaptiveLayerSettings, projection: nn.Module, gather: Gather
    ) -> None:
        super().__init__(model, distance_metric="cosine")
        self.projection: Any = projection  # the library's own would have a bias
        self.settings, self.gather = settings, gather
        self.calls: list[tuple[Tensor, dict[str, Tensor]]] = []

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], teacher_embeddings: list[Tensor]) -> Tensor:
        value = super().compute_loss_from_embeddings(embeddings, teacher_embeddings)
        parts = {"final": value.detach()}
        if self.settings.delta > 0:
            own, target = self.gather(embeddings[0]), self.gather(teacher_embeddings[0])
            contrast = terms.contrastive_loss(own, target, self.settings.tau_c)
            value = value + self.settings.delta * contrast
            parts["contrast"] = contrast.detach()
        self.calls.append((value.detach(), parts))
        return value


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Seed Python's generator within the block; the state before is set again after it."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
