"""sentence-transformers' AdaptiveLayerLoss on the same data and teacher: a rival that trains exits too."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.settings.training import AdaptiveLayerSettings
from leap.train.objective import terms
from leap.train.objective.objective import Gather, Objective

# As many draws of layers as a training may have steps before it meets one twice in a row.
DRAWS = 2**18


class AdaptiveLayer(Objective):
    """Every step trains the final layer and a few drawn ones, each also towards the final layer's vector.

    L = w_last L_base(L_s) + sum over drawn l of
        (w_prior w(l) / n L_base(l) + w_kl T KL(softmax(e^(L_s) / T) || softmax(e^(l) / T)))

    with L_base = 1 - cos to the teacher's final vector + delta L_contrast: the distillation loss of our
    students without its layer terms. Layer 0, the embeddings, is drawn like any other. Vectors are unit, as
    after the model's last module. Source: sentence_transformers 6.2,
    sentence_transformer/losses/adaptive_layer.py (2DMSE, arXiv 2402.14776).

    Not the library's own class: it draws layers by Python's generator and calls the model once a layer, which a
    CUDA graph cannot replay; tests/unit/test_adaptive_layer.py holds value and gradients equal to it.

    The draw is a fixed table read at the place that `progress` names: the same in every process, after a
    resume and inside a CUDA graph.
    """

    drawn: Tensor
    weights: Tensor

    def __init__(
        self,
        settings: AdaptiveLayerSettings,
        layers: int,
        width: int,
        teacher_width: int,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(layers, width, teacher_width, gather)
        self.settings = settings
        count = settings.layers_per_step
        self.register_buffer("drawn", _draws(layers, layers if count is None else count), persistent=False)
        self.register_buffer("weights", prior_weights(settings, layers), persistent=False)

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a batch; see `Objective.forward`. Terms: final, contrast, prior, kl."""
        loss, pooled = self.settings, pooled.float()
        target, projected = teacher[-1], self.projection(pooled).float()
        targets = self.gather(target)
        drawn = self.drawn.index_select(0, _row(progress, len(self.drawn), pooled.device)).view(-1)
        final, contrast = self._base(pooled[-1], projected[-1], target, targets)
        prior = torch.zeros((), device=pooled.device)
        kl = torch.zeros((), device=pooled.device)
        for layer in (drawn[place : place + 1] for place in range(len(drawn))):
            own = pooled.index_select(0, layer)[0]
            near, alike = self._base(own, projected.index_select(0, layer)[0], target, targets)
            prior = prior + self.weights.index_select(0, layer)[0] * (near + loss.delta * alike)
            kl = kl + kl_to_final(own, pooled[-1].detach(), loss.kl_temperature)
        prior = prior / len(drawn)
        total = (
            loss.last_layer_weight * (final + loss.delta * contrast)
            + loss.prior_layers_weight * prior
            + loss.kl_div_weight * loss.kl_temperature * kl
        )
        parts = {"final": final, "contrast": contrast, "prior": prior, "kl": kl}
        return total, {name: value.detach() for name, value in parts.items()}

    def _base(self, own: Tensor, projected: Tensor, target: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        near = terms.final_loss(projected, target)
        if self.settings.delta == 0:
            return near, torch.zeros_like(near)
        return near, terms.contrastive_loss(self.gather(own), targets, self.settings.tau_c)


def kl_to_final(layer: Tensor, final: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(final / T) || softmax(layer / T)) over the dimensions of unit vectors, batch mean.

    Both [B, D]; the caller stops the gradient of `final` (sentence-transformers#3757).
    """
    log_layer = (F.normalize(layer, dim=-1) / temperature).log_softmax(-1)
    return F.kl_div(log_layer, (F.normalize(final, dim=-1) / temperature).softmax(-1), reduction="batchmean")


def prior_weights(settings: AdaptiveLayerSettings, layers: int) -> Tensor:
    """Return w(l) of the layers below the last, index 0 the embeddings, [L_s] float32."""
    numbers = range(layers)
    if settings.layer_weighting == "log":
        return torch.tensor([1 / (1 + math.log(1 + layer)) for layer in numbers])
    if settings.layer_weighting == "linear":
        return torch.tensor([1 / (1 + layer) for layer in numbers])
    return torch.ones(layers)


def _draws(layers: int, count: int) -> Tensor:
    """[DRAWS, count] layers of 0..L_s - 1, each row without repeats; all layers need but one row."""
    if count >= layers:
        return torch.arange(layers)[None]
    generator = torch.Generator().manual_seed(layers)
    return torch.rand(DRAWS, layers, generator=generator).topk(count).indices


def _row(progress: Tensor | float, rows: int, device: torch.device) -> Tensor:
    """The row of the table for a place in the training, [1] int64 on the device."""
    if isinstance(progress, Tensor):
        return (progress * rows).long().clamp_max(rows - 1).view(1)
    return torch.tensor([min(int(progress * rows), rows - 1)], device=device)
