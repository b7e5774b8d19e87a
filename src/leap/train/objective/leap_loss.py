"""L = L_final + alpha L_inter + beta L_exit + delta L_contrast + epsilon L_late + gamma L_redund.

With `heads` a layer's vector need not be the answer itself, only lead to it: L_exit and L_late, and the
contrastive term at every exit, see p_l + p_l Delta_l; the other terms see the layers as they are.
"""

import torch
from torch import Tensor, nn

from leap.core.settings.training import LayerWeights, LossSettings
from leap.train.objective import terms
from leap.train.objective.layer_map import mapped_targets
from leap.train.objective.objective import Gather, Objective


class TrainedHeads(nn.Module):
    """Exit heads while they are trained: p_l + p_l Delta_l for the layers below the last.

    deltas: [L - 1, D, D] float32, zero at the start unless `begin` is called; weight decay pulls a head to the
    identity.
    """

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.deltas = nn.Parameter(torch.zeros(layers - 1, width, width))

    @torch.no_grad()
    def begin(self, maps: Tensor) -> None:
        """Start from maps as `maps` gives them."""
        self.deltas.copy_(maps - torch.eye(maps.shape[-1], device=maps.device))

    def forward(self, below: Tensor) -> Tensor:
        """Map layers 1 to L - 1; [L - 1, B, D] to the same."""
        return below + below @ self.deltas

    def maps(self) -> Tensor:
        """Return 1 + Delta_l, [L - 1, D, D] float32: a row vector p_l becomes p_l @ maps[l - 1]."""
        deltas = self.deltas.detach()
        return deltas + torch.eye(deltas.shape[-1], device=deltas.device)


class LeapLoss(Objective):
    """The whole objective (paper, Appendix L). A term of weight zero is not computed."""

    exit_weights: Tensor
    own_exit_weights: Tensor

    def __init__(
        self, settings: LossSettings, layers: int, width: int, teacher_width: int, gather: Gather | None = None
    ) -> None:
        super().__init__(layers, width, teacher_width, gather)
        self.settings = settings
        self.heads = TrainedHeads(layers, width) if settings.heads and layers > 1 else None
        weights = layer_weights(settings.layer_weights, layers)
        self.register_buffer("exit_weights", _mean_one(weights), persistent=False)
        self.register_buffer("own_exit_weights", _mean_one(weights[:-1]), persistent=False)

    def maps(self) -> Tensor | None:
        return None if self.heads is None else self.heads.maps()

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        own = pooled[1:].float()
        exited = self._map_exits(own)
        parts = self._terms(own, exited, teacher, stored, progress)
        total = self._sum(parts)
        if self.settings.matryoshka:
            parts["matryoshka"] = self._matryoshka(own, exited, teacher, stored, progress)
            total = total + parts["matryoshka"]
        return total, {name: value.detach() for name, value in parts.items()}

    def _sum(self, parts: dict[str, Tensor]) -> Tensor:
        return torch.stack([self._weight(name) * value for name, value in parts.items()]).sum()

    def _matryoshka(
        self, own: Tensor, exited: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> Tensor:
        """The whole loss at each smaller width, summed as sentence-transformers' MatryoshkaLoss does.

        The dimensions behind a width are zero, which leaves every cosine that of the shorter vectors.
        """
        width = own.shape[-1]
        places = torch.arange(width, device=own.device)
        totals = []
        for share in self.settings.matryoshka:
            first = places < max(1, round(share * width))
            totals.append(self._sum(self._terms(own * first, exited * first, teacher, stored, progress)))
        return torch.stack(totals).sum()

    def _terms(
        self, own: Tensor, exited: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> dict[str, Tensor]:
        """Every term of weight above zero; own and what leaves, [L, B, D]."""
        loss = self.settings
        projected = self.projection(own).float()
        parts = {"final": terms.final_loss(projected[-1], teacher[-1])}
        if loss.alpha > 0:
            targets = mapped_targets(teacher, stored, self.layers, loss.layer_map)
            parts["inter"] = terms.intermediate_loss(projected, targets)
        if loss.beta > 0:
            mapped = projected if exited is own else self.projection(exited).float()
            parts["exit"] = self._exit(exited, mapped, teacher[-1], progress)
        if loss.delta > 0:
            parts["contrast"] = terms.contrastive_loss(self.gather(own[-1]), self.gather(teacher[-1]), loss.tau_c)
        if loss.exit_contrast > 0 and self.layers > 1:
            parts["exit_contrast"] = self._exit_contrast(exited, teacher[-1])
        if loss.epsilon > 0 and loss.late_from < self.layers:
            parts["late"] = terms.late_loss(exited[loss.late_from - 1 : -1], own[-1])
        if loss.gamma > 0 and self.layers > 1:
            parts["redund"] = terms.redundancy_loss(own, loss.redundancy_clip)
        if loss.anchor > 0:
            parts["anchor"] = terms.final_loss(own[-1], teacher[-1])
        return parts

    def _map_exits(self, own: Tensor) -> Tensor:
        below, share = own[:-1], self.settings.exit_gradient
        if self.heads is None and share == 1.0:
            return own
        if share < 1.0:
            below = torch.lerp(below.detach(), below, share)
        return torch.cat([below if self.heads is None else self.heads(below), own[-1:]])

    def _exit(self, own: Tensor, projected: Tensor, teacher_final: Tensor, progress: Tensor | float) -> Tensor:
        """L_exit = beta_teacher L_exit^(t) + beta_student ramp(progress) L_exit^(s), the first weight 1."""
        loss = self.settings
        value = own.new_zeros(())
        if loss.beta_teacher > 0:
            value = loss.beta_teacher * self._margins(projected, teacher_final, self.exit_weights)
        if loss.beta_student > 0 and self.layers > 1:
            to_itself = self._margins(own[:-1], own[-1].detach(), self.own_exit_weights)
            value = value + loss.beta_student * ramp(progress, *loss.ramp) * to_itself
        return value

    def _exit_contrast(self, exited: Tensor, teacher_final: Tensor) -> Tensor:
        """The contrastive term at every layer below the last, their mean by the exit loss's weights.

        Against full depth its gradient is stopped there: the exits follow the index, it does not follow them.
        """
        loss = self.settings
        gathered = self.gather(exited.transpose(0, 1)).transpose(0, 1)
        index = gathered[-1].detach() if loss.exit_contrast_with == "final" else None
        teacher, weights = self.gather(teacher_final), self.own_exit_weights
        return terms.contrastive_loss(gathered[:-1], teacher, loss.tau_c, index, weights)

    def _margins(self, layers: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        loss = self.settings
        return terms.exit_loss(layers, target, weights, tau=loss.tau, kind=loss.margin, slope=loss.slope)

    def _weight(self, name: str) -> float:
        loss = self.settings
        return {
            "final": 1.0,
            "inter": loss.alpha,
            "exit": loss.beta,
            "contrast": loss.delta,
            "exit_contrast": loss.exit_contrast,
            "late": loss.epsilon,
            "redund": loss.gamma,
            "anchor": loss.anchor,
        }[name]


def layer_weights(settings: LayerWeights, layers: int) -> Tensor:
    """Return w_l for l = 1..L_s as the settings give them, [L_s] float32."""
    values = [settings.early if layer < settings.late_from else settings.late for layer in range(1, layers)]
    return torch.tensor([*values, settings.final])


def ramp(progress: Tensor | float, start: float, end: float) -> Tensor | float:
    """Return 0 before `start`, 1 after `end`, linear between (paper, Appendix B: 10 %-60 % of training)."""
    if start == end:
        return (progress >= end) * 1.0
    rise = (progress - start) / (end - start)
    return rise.clamp(0.0, 1.0) if isinstance(rise, Tensor) else min(max(rise, 0.0), 1.0)


def _mean_one(weights: Tensor) -> Tensor:
    """Weights of mean 1, so that uniform ones of any size are the paper's plain mean."""
    return weights / weights.mean().clamp_min(1e-12)
