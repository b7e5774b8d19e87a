"""pi: which teacher layer a student layer is matched with."""

import math

import torch
from torch import Tensor

from leap.core.settings.training import Loss, LossSettings


def positions(student_layers: int, teacher_layers: int, kind: str) -> list[tuple[int, int, float]]:
    """Return for each student layer the teacher layers below and above it, and the weight of the upper one.

    uniform: ceil(l * L_t / L_s), the paper's uniform map. interpolate: l * L_t / L_s between its neighbours,
    so that a teacher shallower than the student gives every layer a target of its own (repeated targets make
    neighbouring layers alike). Layer 0 is the teacher's embedding layer.

    Returns:
        (low, high, weight of high) for l = 1..L_s; low = high where the place is a whole layer.
    """
    places = [layer * teacher_layers / student_layers for layer in range(1, student_layers + 1)]
    if kind == "uniform":
        return [(math.ceil(place), math.ceil(place), 0.0) for place in places]
    return [(math.floor(place), math.ceil(place), place - math.floor(place)) for place in places]


def needed_teacher_layers(student_layers: int, teacher_layers: int, loss: Loss) -> list[int]:
    """Return the teacher layers that loss and heads read, ascending; the last one always, 0: embeddings."""
    needed = {teacher_layers}
    if isinstance(loss, LossSettings) and loss.alpha > 0:
        for low, high, _ in positions(student_layers, teacher_layers, loss.layer_map):
            needed |= {low, high}
    if isinstance(loss, LossSettings) and loss.heads and loss.heads_start == "ridge":
        needed |= set(range(1, teacher_layers + 1))
    return sorted(needed)


def mapped_targets(teacher: Tensor, stored: list[int], student_layers: int, kind: str) -> Tensor:
    """Return the target of every student layer, [L_s, B, D_t].

    Args:
        teacher: [S, B, D_t], the stored layers in order.
        stored: their numbers, the last one being the teacher's last layer.
        student_layers: L_s.
        kind: uniform or interpolate.
    """
    places = positions(student_layers, stored[-1], kind)
    at = {layer: teacher[index] for index, layer in enumerate(stored)}
    # Stacked views and Python numbers: an index or weight tensor made here would wait for the device.
    return torch.stack(
        [at[low] if weight == 0.0 else torch.lerp(at[low], at[high], weight) for low, high, weight in places]
    )
