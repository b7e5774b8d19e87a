"""The objectives of a training: one a kind of `loss`, all called alike."""

from leap.core.settings.training import AdaptiveLayerSettings, Loss
from leap.train.objective.adaptive_layer import AdaptiveLayer
from leap.train.objective.leap_loss import LeapLoss
from leap.train.objective.objective import Gather, Objective

__all__ = ["AdaptiveLayer", "LeapLoss", "Objective", "objective"]


def objective(
    settings: Loss, layers: int, width: int, teacher_width: int, gather: Gather | None = None
) -> Objective:
    """Return the objective that `loss.kind` names, for L_s layers; arguments as of `Objective`."""
    if isinstance(settings, AdaptiveLayerSettings):
        return AdaptiveLayer(settings, layers, width, teacher_width, gather)
    return LeapLoss(settings, layers, width, teacher_width, gather)
