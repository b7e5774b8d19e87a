"""MLflow as a view of the files: one run a checkpoint, found by the tag `leap.checkpoint`.

    tracking = Tracking.open(settings)
    with tracking.training_run("leap", 1, {"learning_rate": 1e-3}) as run:
        run.metrics(20, {"loss": 2.1})
        run.finish(sha256_of_the_weights)

    log_checkpoint(settings, "leap", 1)     # what train and gate end with, and `leap track`

The files of the project are the truth. No failure of MLflow stops a stage; what could not be logged is logged
by the next call. MLflow is imported when a tracking is opened, not before.
"""

from leap.tracking.checkpoint import log_checkpoint
from leap.tracking.report import log_report
from leap.tracking.run import TrainingRun
from leap.tracking.store import Tracking

__all__ = ["Tracking", "TrainingRun", "log_checkpoint", "log_report"]
