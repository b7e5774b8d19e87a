"""The registered model as MLflow loads and serves it: sentences in, vectors out, exits taken.

MLflow copies this file and the `leap` package beside the weights and runs it on loading (models from code):
nothing is pickled.
"""

from typing import Any

import mlflow
import numpy as np
import pandas as pd


class ServedLeap(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    """`LeapEncoder` behind MLflow's interface."""

    def load_context(self, context: Any) -> None:
        """Loads the registered checkpoint; LEAP_MONITOR_FOLDER watches it (docs/monitoring.md)."""
        from leap.exits import LeapEncoder
        from leap.monitoring import Monitor

        self.encoder = LeapEncoder(context.artifacts["checkpoint"])
        self.encoder.monitor = Monitor.from_environment(self.encoder)

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> np.ndarray:
        """Vectors [n, width] float32 of the column `sentence`; with strategy="full" none exits."""
        strategy = (params or {}).get("strategy", "converged")
        vectors = self.encoder.encode(model_input["sentence"].tolist(), strategy=strategy)
        return np.asarray(vectors, dtype=np.float32)


mlflow.models.set_model(ServedLeap())
