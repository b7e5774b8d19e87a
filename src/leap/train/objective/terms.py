"""The terms of the objective, pure functions in float32 (paper, §3.2 and Appendix L).

Shapes: student layers [L, B, D] (layer l at index l - 1), teacher vectors [B, D_t] or [L, B, D_t]. All
cosines are of the vectors as given; nothing here normalises in place or holds parameters.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Margin = Literal["sigmoid", "softplus", "hinge"]

# (1 - cos)^0.5 has an infinite slope at cos = 1, so the root is taken of a little more.
ROOT_EPSILON = 1e-4


def final_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """L_final = 1 - cos(e_s^(L_s), e_t^(L_t)), mean over the batch; both [B, D_t]."""
    return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()


def intermediate_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """L_inter = 1/L_s sum_l (1 - cos(e_s^(l), e_t^(pi(l)))); both [L, B, D_t], the teacher already mapped."""
    return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()


def margin(gap: Tensor, kind: Margin, slope: float) -> Tensor:
    """The soft margin of gap = tau - cos.

    sigmoid: sigma(slope * gap), the paper's. Its gradient vanishes where a layer is far from the target
        (4e-4 at cos 0.2), so it only polishes layers that are already near.
    softplus: 0.4 softplus(slope * gap): alike near the threshold, but a constant slope far from it.
    hinge: 0.4 max(0, slope * gap), the softplus's limit; no gradient once the threshold is reached.
    """
    scaled = slope * gap
    if kind == "sigmoid":
        return torch.sigmoid(scaled)
    if kind == "softplus":
        return 0.4 * F.softplus(scaled)
    return 0.4 * F.relu(scaled)


def exit_loss(
    layers: Tensor, target: Tensor, weights: Tensor, *, tau: float, kind: Margin, slope: float
) -> Tensor:
    """1/L sum_l w_l margin(tau - cos(e^(l), target)), L_exit's half for one target.

    Args:
        layers: [L, B, D]; all student layers for the teacher's target, all but the last for the student's.
        target: [B, D]; the teacher's final vector, or the student's with its gradient stopped.
        weights: [L], mean 1.
        tau: threshold of the margin.
        kind: form of the margin.
        slope: 10 in the paper.
    """
    gaps = tau - F.cosine_similarity(layers, target, dim=-1)
    return (weights[:, None] * margin(gaps, kind, slope)).mean()


def contrastive_loss(
    student: Tensor, teacher: Tensor, tau_c: float, index: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """KL(softmax(S_s / tau_c) || softmax(S_t / tau_c)) over the batch's similarities, without the diagonal.

    Args:
        student: [..., B, D], unit norm not needed; of all processes where several train together. B >= 2.
            Layers may come first: the mean over them.
        teacher: [B, D_t], the same sentences.
        tau_c: temperature.
        index: [B, D], the vectors that the student's are compared with; its own if None.
        weights: of the layers that come first, mean 1; all alike if None.
    """
    log_student = _log_similarities(student, student if index is None else index, tau_c)
    log_teacher = _log_similarities(teacher, teacher, tau_c)
    divergence = (log_student.exp() * (log_student - log_teacher)).sum(-1).mean(-1)
    return divergence.mean() if weights is None else (weights * divergence).mean()


def late_loss(layers: Tensor, final: Tensor) -> Tensor:
    """L_late = mean_l (1 - cos(e^(l), e^(L)))^0.5 over the late layers, [K, B, D].

    `final` is the student's last layer, [B, D], with its gradient as in the paper's formula.
    """
    gaps = (1 - F.cosine_similarity(layers, final, dim=-1)).clamp_min(0)
    return (gaps + ROOT_EPSILON).sqrt().mean()


def redundancy_loss(layers: Tensor, clip: float) -> Tensor:
    """L_redund = -1/(L-1) sum_l min(|e^(l+1) - e^(l)|, clip), on unit vectors; [L, B, D]."""
    unit = F.normalize(layers, dim=-1)
    squared = (unit[1:] - unit[:-1]).square().sum(-1)
    return -(squared + 1e-12).sqrt().clamp_max(clip).mean()


def _log_similarities(vectors: Tensor, index: Tensor, temperature: float) -> Tensor:
    unit, others = F.normalize(vectors, dim=-1), F.normalize(index, dim=-1)
    rows = unit.shape[-2]
    similarities = unit @ others.transpose(-1, -2) / temperature
    # Without its first entry the flat matrix has a diagonal entry at the end of every B + 1: dropped as a
    # view, since a mask's number of entries would have to be waited for.
    flat = similarities.flatten(-2)[..., 1:]
    others_only = flat.view(*flat.shape[:-1], rows - 1, rows + 1)[..., :-1]
    return others_only.reshape(*unit.shape[:-2], rows, rows - 1).log_softmax(-1)
