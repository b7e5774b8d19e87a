"""Watching a served encoder: windows of counts, and the alerts between two of them.

    model.monitor = Monitor(model, Path("windows"))          # or LEAP_MONITOR_FOLDER for the registered model
    leap monitor --reference 'windows/2026-11-2*' --current 'windows/2026-12-0*'

No text and no vector ever reaches a file.
"""

from leap.serve.limits import check_limits, check_texts
from leap.serve.monitor import Monitor

__all__ = ["Monitor", "check_limits", "check_texts"]
