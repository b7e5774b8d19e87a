"""The registered model as MLflow loads and serves it: sentences in, vectors out, exits taken.

MLflow copies this file and the `leap` package next to the weights and runs it on loading (models from code):
nothing is pickled. What a caller gets wrong is answered with status 400 and one message.
"""

from typing import Any, get_args

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE


class ServedLeap(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    def load_context(self, context: Any) -> None:
        """Load the registered checkpoint; LEAP_MONITOR_FOLDER watches it (docs/monitoring.md)."""
        from leap.exits import LeapEncoder
        from leap.serve import Monitor, check_limits

        check_limits()
        self.encoder = LeapEncoder(context.artifacts["checkpoint"])
        self.encoder.monitor = Monitor.from_environment(self.encoder)

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> Any:
        """Return vectors of the column `sentence`, with the exit layers if `return_exit_layers` is set.

        Args:
            context: not used.
            model_input: a column `sentence`.
            params: `input_type` (query, document), `strategy` ("full": none exits), `threshold`, `min_layer`,
                `layer`, `return_exit_layers`.

        Returns:
            [n, width] float32; with exit layers a table with the columns `vector` and `exit_layer`.

        Raises:
            MlflowException: INVALID_PARAMETER_VALUE, status 400, for whatever the caller can repair.
        """
        from leap.core.errors import UserError
        from leap.exits.leaving import Strategy
        from leap.serve import check_texts

        options = {name: value for name, value in (params or {}).items() if value is not None}
        strategy = options.get("strategy")
        if strategy not in (None, *get_args(Strategy)):
            raise _refused(f"strategy {strategy!r} is none of {', '.join(get_args(Strategy))}")
        try:
            sentences = check_texts(model_input["sentence"].tolist())
            encoded = self.encoder.encode(sentences, **options)
        except (ValueError, UserError) as error:
            # Where the model lies is none of the caller's business.
            raise _refused(str(error).replace(f"{self.encoder.folder}/", "")) from None
        if not options.get("return_exit_layers"):
            return np.asarray(encoded, dtype=np.float32)
        vectors, layers = encoded
        return pd.DataFrame({"vector": list(map(np.ndarray.tolist, vectors)), "exit_layer": layers})


def _refused(message: str) -> MlflowException:
    return MlflowException(message, INVALID_PARAMETER_VALUE)


mlflow.models.set_model(ServedLeap())
