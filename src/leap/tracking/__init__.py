"""MLflow, opened: the store of the settings, and the live run of a training.

    tracking = Tracking.open(settings)
    with tracking.training_run("leap", 1, {"learning_rate": 1e-3}) as run:
        run.metrics(20, {"loss": 2.1})
        run.finish(sha256_of_the_weights)

No failure of MLflow stops a stage; what could not be logged is logged by the next `promote`. MLflow is imported
when a tracking is opened, not before.
"""

from leap.tracking.store import Tracking
from leap.tracking.training_run import TrainingRun

__all__ = ["Tracking", "TrainingRun"]
