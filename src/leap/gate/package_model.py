"""A checkpoint as an MLflow model folder: code and safetensors, signature, example, pinned requirements."""

import tempfile
from importlib.metadata import version
from pathlib import Path

from leap.gate.runtime_code import copy_runtime

# What `leap.exits` needs to run; MLflow's own inference of this list takes tens of seconds and guesses.
REQUIRED = ("mlflow", "numpy", "pandas", "torch", "tokenizers", "safetensors", "tqdm", "huggingface_hub")
EXAMPLE = ["How do I sort a list of numbers?"]


def write_model_folder(checkpoint: Path, target: Path, metadata: dict[str, str]) -> None:
    """Writes an MLflow pyfunc model that takes a column `sentence` and returns vectors, exits taken or not.

    Args:
        checkpoint: a folder `models/<variant>-<seed>`.
        target: must not exist.
        metadata: is kept in the model's MLmodel file.
    """
    import mlflow
    import numpy as np
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    from leap.model.encoder import EncoderConfig

    width = EncoderConfig.load(checkpoint).width
    with tempfile.TemporaryDirectory() as scratch:
        mlflow.pyfunc.save_model(
            path=str(target),
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={"checkpoint": str(checkpoint)},
            code_paths=[str(copy_runtime(Path(scratch)))],
            pip_requirements=[f"{name}=={public_version(name)}" for name in REQUIRED],
            signature=ModelSignature(
                inputs=Schema([ColSpec(DataType.string, "sentence")]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, width))]),
                params=ParamSchema([ParamSpec("strategy", DataType.string, "converged")]),
            ),
            # Lets MLflow show and serve a request that works; it is not run here, the signature is given.
            input_example=pd.DataFrame({"sentence": EXAMPLE}),
            metadata=metadata,
        )


def public_version(package: str) -> str:
    """The installed version as PyPI has it: without the local part that names a build, as in 2.13.0+cpu."""
    return version(package).partition("+")[0]
