"""MLflow as a view of the files: runs of checkpoints, registered versions with their aliases, cards, exports.

    log_checkpoint(settings, "leap", 1)     # what `promote` does for every checkpoint, and `leap track`

The files of the project are the truth.
"""

from leap.registry.checkpoint_run import log_checkpoint
from leap.registry.report_run import log_report

__all__ = ["log_checkpoint", "log_report"]
