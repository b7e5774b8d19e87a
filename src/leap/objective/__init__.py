"""The LEAP objective: its terms, and their weighted sum."""

from leap.objective.leap_loss import LeapLoss

__all__ = ["LeapLoss"]
