"""The objectives of a training: one a kind of `loss`, all called alike."""

from leap.core.settings.training import AdaptiveLayerSettings, Loss
from leap.train.objective.leap_loss import LeapLoss
from leap.train.objective.objective import Gather, Objective

__all__ = ["LeapLoss", "Objective", "objective"]


def objective(
    settings: Loss, layers: int, width: int, teacher_width: int, gather: Gather | None = None, seed: int = 0
) -> Objective:
    """Return the objective that `loss.kind` names, for L_s layers.

    Args:
        seed: the training's, of what an objective draws; other arguments as of `Objective`.
    """
    if isinstance(settings, AdaptiveLayerSettings):
        # Not above: it imports sentence-transformers.
        from leap.train.objective.adaptive_layer import AdaptiveLayer

        return AdaptiveLayer(settings, layers, width, teacher_width, gather, seed)
    return LeapLoss(settings, layers, width, teacher_width, gather)
