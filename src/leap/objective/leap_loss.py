"""L = L_final + alpha L_inter + beta L_exit + delta L_contrast + epsilon L_late + gamma L_redund."""

import torch
from torch import Tensor, nn

from leap.objective import terms
from leap.objective.layer_map import mapped_targets
from leap.settings.student import LossSettings


class LeapLoss(nn.Module):
    """The whole objective with its projection (paper, Appendix L).

    One linear map from the student's width to the teacher's is shared by all layers and used in training
    only; cosines between the student's own layers are taken on its own vectors. A term of weight zero is not
    computed. The paper leaves the projection's place open; docs/paper.md says why here.
    """

    layer_weights: Tensor

    def __init__(self, settings: LossSettings, layers: int, width: int, teacher_width: int) -> None:
        """Prepares the objective.

        Args:
            settings: the weights and the form of each term.
            layers: L_s.
            width: the student's D.
            teacher_width: D_t.
        """
        super().__init__()
        self.settings = settings
        self.layers = layers
        self.projection = (
            nn.Identity() if width == teacher_width else nn.Linear(width, teacher_width, bias=False)
        )
        weights = settings.layer_weights
        early = settings.late_from - 1
        values = [weights.early if layer <= early else weights.late for layer in range(1, layers)]
        self.register_buffer("layer_weights", torch.tensor([*values, weights.final]), persistent=False)

    def forward(
        self, pooled: Tensor, teacher: Tensor, stored: list[int], progress: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch.

        Args:
            pooled: [L_s + 1, B, D], the student's pooled layers, index 0 the embedding layer.
            teacher: [S, B, D_t] float32, the stored teacher layers.
            stored: the numbers of those layers.
            progress: share of the training done, 0 to 1.

        Returns:
            The loss, and each computed term before its weight, all float32 scalars.
        """
        own = pooled[1:].float()
        projected = self.projection(own).float()
        parts = self._terms(own, projected, teacher, stored, progress)
        total = torch.stack([self._weight(name) * value for name, value in parts.items()]).sum()
        return total, {name: value.detach() for name, value in parts.items()}

    def _terms(
        self, own: Tensor, projected: Tensor, teacher: Tensor, stored: list[int], progress: float
    ) -> dict[str, Tensor]:
        loss = self.settings
        parts = {"final": terms.final_loss(projected[-1], teacher[-1])}
        if loss.alpha > 0:
            targets = mapped_targets(teacher, stored, self.layers, loss.layer_map)
            parts["inter"] = terms.intermediate_loss(projected, targets)
        if loss.beta > 0:
            parts["exit"] = self._exit(own, projected, teacher[-1], progress)
        if loss.delta > 0:
            parts["contrast"] = terms.contrastive_loss(own[-1], teacher[-1], loss.tau_c)
        if loss.epsilon > 0 and loss.late_from < self.layers:
            parts["late"] = terms.late_loss(own[loss.late_from - 1 : -1], own[-1])
        if loss.gamma > 0 and self.layers > 1:
            parts["redund"] = terms.redundancy_loss(own, loss.redundancy_clip)
        return parts

    def _exit(self, own: Tensor, projected: Tensor, teacher_final: Tensor, progress: float) -> Tensor:
        loss = self.settings
        weights = self.layer_weights / self.layer_weights.mean()
        value = terms.exit_loss(
            projected, teacher_final, weights, tau=loss.tau, kind=loss.margin, slope=loss.slope
        )
        share = loss.beta_student * ramp(progress, *loss.ramp)
        if share > 0 and self.layers > 1:
            own_weights = self.layer_weights[:-1] / self.layer_weights[:-1].mean().clamp_min(1e-12)
            value = value + share * terms.exit_loss(
                own[:-1], own[-1].detach(), own_weights, tau=loss.tau, kind=loss.margin, slope=loss.slope
            )
        return value

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


def ramp(progress: float, start: float, end: float) -> float:
    """0 before `start`, 1 after `end`, linear between (paper, Appendix B: 10 %-60 % of training)."""
    if progress >= end:
        return 1.0
    if progress <= start:
        return 0.0
    return (progress - start) / (end - start)
