"""L = L_final + alpha L_inter + beta L_exit + delta L_contrast + epsilon L_late + gamma L_redund."""

import torch
from torch import Tensor

from leap.core.settings.training import LayerWeights, LossSettings
from leap.train.objective import terms
from leap.train.objective.layer_map import mapped_targets
from leap.train.objective.objective import Gather, Objective


class LeapLoss(Objective):
    """The whole objective (paper, Appendix L). A term of weight zero is not computed."""

    exit_weights: Tensor
    own_exit_weights: Tensor

    def __init__(
        self,
        settings: LossSettings,
        layers: int,
        width: int,
        teacher_width: int,
        gather: Gather | None = None,
    ) -> None:
        """Prepares the objective.

        Args:
            settings: the weights and the form of each term.
            layers: L_s.
            width: the student's D.
            teacher_width: D_t.
            gather: see `Objective`.
        """
        super().__init__(layers, width, teacher_width, gather)
        self.settings = settings
        weights = layer_weights(settings.layer_weights, layers)
        self.register_buffer("exit_weights", _mean_one(weights), persistent=False)
        self.register_buffer("own_exit_weights", _mean_one(weights[:-1]), persistent=False)

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch; see `Objective.forward`."""
        own = pooled[1:].float()
        projected = self.projection(own).float()
        parts = self._terms(own, projected, teacher, stored, progress)
        total = torch.stack([self._weight(name) * value for name, value in parts.items()]).sum()
        return total, {name: value.detach() for name, value in parts.items()}

    def _terms(
        self, own: Tensor, projected: Tensor, teacher: Tensor, stored: list[int], progress: Tensor | float
    ) -> dict[str, Tensor]:
        loss = self.settings
        parts = {"final": terms.final_loss(projected[-1], teacher[-1])}
        if loss.alpha > 0:
            targets = mapped_targets(teacher, stored, self.layers, loss.layer_map)
            parts["inter"] = terms.intermediate_loss(projected, targets)
        if loss.beta > 0:
            parts["exit"] = self._exit(own, projected, teacher[-1], progress)
        if loss.delta > 0:
            parts["contrast"] = terms.contrastive_loss(self.gather(own[-1]), self.gather(teacher[-1]), loss.tau_c)
        if loss.epsilon > 0 and loss.late_from < self.layers:
            parts["late"] = terms.late_loss(own[loss.late_from - 1 : -1], own[-1])
        if loss.gamma > 0 and self.layers > 1:
            parts["redund"] = terms.redundancy_loss(own, loss.redundancy_clip)
        return parts

    def _exit(self, own: Tensor, projected: Tensor, teacher_final: Tensor, progress: Tensor | float) -> Tensor:
        """L_exit = L_exit^(t) + beta_student ramp(progress) L_exit^(s)."""
        loss = self.settings
        value = self._margins(projected, teacher_final, self.exit_weights)
        if loss.beta_student > 0 and self.layers > 1:
            to_itself = self._margins(own[:-1], own[-1].detach(), self.own_exit_weights)
            value = value + loss.beta_student * ramp(progress, *loss.ramp) * to_itself
        return value

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
            "late": loss.epsilon,
            "redund": loss.gamma,
        }[name]


def layer_weights(settings: LayerWeights, layers: int) -> Tensor:
    """w_l for l = 1..L_s as the settings give them, [L_s] float32."""
    values = [settings.early if layer < settings.late_from else settings.late for layer in range(1, layers)]
    return torch.tensor([*values, settings.final])


def ramp(progress: Tensor | float, start: float, end: float) -> Tensor | float:
    """0 before `start`, 1 after `end`, linear between (paper, Appendix B: 10 %-60 % of training)."""
    if start == end:
        return (progress >= end) * 1.0
    rise = (progress - start) / (end - start)
    return rise.clamp(0.0, 1.0) if isinstance(rise, Tensor) else min(max(rise, 0.0), 1.0)


def _mean_one(weights: Tensor) -> Tensor:
    """Weights of mean 1, so that uniform ones of any size are the paper's plain mean."""
    return weights / weights.mean().clamp_min(1e-12)
