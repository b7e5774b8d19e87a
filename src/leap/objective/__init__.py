"""What a student is trained on: one objective a kind of `loss`, all called alike."""

from leap.objective.adaptive_layer import AdaptiveLayer
from leap.objective.base import Gather, Objective
from leap.objective.leap_loss import LeapLoss
from leap.settings.student import AdaptiveLayerSettings, Loss

__all__ = ["AdaptiveLayer", "LeapLoss", "Objective", "objective"]


def objective(
    settings: Loss, layers: int, width: int, teacher_width: int, gather: Gather | None = None
) -> Objective:
    """The objective that `loss.kind` names.

    Args:
        settings: the block `loss` of a variant.
        layers: L_s.
        width: the student's D.
        teacher_width: D_t.
        gather: see `leap.objective.base.Objective`.
    """
    if isinstance(settings, AdaptiveLayerSettings):
        return AdaptiveLayer(settings, layers, width, teacher_width, gather)
    return LeapLoss(settings, layers, width, teacher_width, gather)
