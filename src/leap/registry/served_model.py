"""The registered model as MLflow loads and serves it: sentences in, vectors out, exits taken.

MLflow copies this file and the `leap` package beside the weights and runs it on loading (models from code):
nothing is pickled. What a caller gets wrong is answered with status 400 and one message.
"""

import os
from typing import Any, get_args

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

# Limits of one request; whoever serves the model sets others in the server's environment.
MAX_SENTENCES = ("LEAP_MAX_SENTENCES", 1024)
MAX_CHARACTERS = ("LEAP_MAX_CHARACTERS", 20_000)  # of a sentence
MAX_REQUEST_CHARACTERS = ("LEAP_MAX_REQUEST_CHARACTERS", 2_000_000)  # of all sentences


class ServedLeap(mlflow.pyfunc.PythonModel):  # type: ignore[misc, name-defined]
    """`LeapEncoder` behind MLflow's interface."""

    def load_context(self, context: Any) -> None:
        """Loads the registered checkpoint; LEAP_MONITOR_FOLDER watches it (docs/monitoring.md)."""
        from leap.exits import LeapEncoder
        from leap.serve import Monitor

        for limit in (MAX_SENTENCES, MAX_CHARACTERS, MAX_REQUEST_CHARACTERS):
            limited(limit)  # a mistake shows when the server starts, not with the first request
        self.encoder = LeapEncoder(context.artifacts["checkpoint"])
        self.encoder.monitor = Monitor.from_environment(self.encoder)

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> Any:
        """Vectors of the column `sentence`, with the exit layers if `return_exit_layers` is set.

        Args:
            context: not used.
            model_input: a column `sentence`.
            params: `strategy` ("full": none exits), `threshold`, `min_layer`, `layer`, `return_exit_layers`.

        Returns:
            [n, width] float32; with exit layers a table with the columns `vector` and `exit_layer`.

        Raises:
            MlflowException: INVALID_PARAMETER_VALUE, status 400, for whatever the caller can mend.
        """
        from leap.core.errors import UserError
        from leap.exits.leap_encoder import Strategy

        sentences = checked(model_input["sentence"].tolist())
        options = {name: value for name, value in (params or {}).items() if value is not None}
        strategy = options.get("strategy", "converged")
        if strategy not in get_args(Strategy):
            raise _refused(f"strategy {strategy!r} is none of {', '.join(get_args(Strategy))}")
        try:
            encoded = self.encoder.encode(sentences, **options)
        except (ValueError, UserError) as error:
            # Where the model lies is none of the caller's business.
            raise _refused(str(error).replace(f"{self.encoder.folder}/", "")) from None
        if not options.get("return_exit_layers"):
            return np.asarray(encoded, dtype=np.float32)
        vectors, layers = encoded
        return pd.DataFrame({"vector": list(map(np.ndarray.tolist, vectors)), "exit_layer": layers})


def checked(sentences: list[Any]) -> list[str]:
    """The sentences, if they are text and within the limits.

    Raises:
        MlflowException: they are not.
    """
    most, longest, largest = map(limited, (MAX_SENTENCES, MAX_CHARACTERS, MAX_REQUEST_CHARACTERS))
    if len(sentences) > most:
        raise _refused(f"{len(sentences)} sentences in one request: at most {most} are taken")
    for number, sentence in enumerate(sentences, 1):
        if not isinstance(sentence, str):
            raise _refused(f"sentence {number} is no text")
        if len(sentence) > longest:
            raise _refused(f"sentence {number} has {len(sentence)} characters: at most {longest} are taken")
    total = sum(map(len, sentences))
    if total > largest:
        raise _refused(f"{total} characters in one request: at most {largest} are taken")
    return sentences


def limited(limit: tuple[str, int]) -> int:
    """The value of a limit: the environment's, else its default.

    Raises:
        UserError: the environment's is no whole number above 0.
    """
    from leap.core.errors import UserError

    name, default = limit
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(f"{name} is {text!r} in the environment: set a whole number above 0, or unset it")
    return int(text)


def _refused(message: str) -> MlflowException:
    return MlflowException(message, INVALID_PARAMETER_VALUE)


mlflow.models.set_model(ServedLeap())
