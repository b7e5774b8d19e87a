"""Pairs labelled as duplicates: scored as by sentence-transformers' BinaryClassificationEvaluator."""

import numpy as np

from leap.evidence.spearman import Array


def duplicate_scores(cosines: Array, labels: Array) -> tuple[float, float]:
    """Compute average precision, and the best F1 over all thresholds; cosines [P], labels [P] of 0 or 1."""
    from sklearn.metrics import average_precision_score, precision_recall_curve  # takes 2 s

    precision, recall, _ = precision_recall_curve(labels, cosines)
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
    return float(average_precision_score(labels, cosines)), float(f1.max())
