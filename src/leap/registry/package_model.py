"""A checkpoint as an MLflow model folder: code and safetensors, signature, example, pinned requirements."""

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from leap.registry.runtime_code import SERVED, copy_runtime

# What `leap.exits` needs to run; MLflow's own inference of this list takes tens of seconds and guesses.
REQUIRED = (
    *("mlflow", "numpy", "pandas", "torch", "tokenizers", "safetensors", "tqdm", "huggingface_hub"),
    *("transformers", "sentence-transformers"),
)
EXAMPLE = ["How do I sort a list of numbers?"]


def write_model_folder(checkpoint: Path, target: Path, metadata: dict[str, str], card: str | None) -> None:
    """Write an MLflow pyfunc model that takes a column `sentence` and returns vectors, exits taken or not.

    The parameters of a request are `LeapEncoder.encode`'s; null stands for the model's own value.

    Args:
        checkpoint: a folder `models/<variant>-<seed>`.
        target: must not exist.
        metadata: goes into the model's MLmodel file.
        card: the README.md next to the weights.
    """
    import mlflow
    import numpy as np
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    from leap.models.folder import own_dimensions
    from leap.models.open_model import read_shape

    width = read_shape(checkpoint).width
    width = min(width, own_dimensions(checkpoint) or width)
    text, whole, real, yes_no = DataType.string, DataType.long, DataType.double, DataType.boolean
    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / checkpoint.name
        shutil.copytree(checkpoint, described)
        if card is not None:
            (described / "README.md").write_text(card, encoding="utf-8")
        mlflow.pyfunc.save_model(
            path=str(target),
            python_model=str(SERVED),
            artifacts={"checkpoint": str(described)},
            code_paths=[str(copy_runtime(Path(scratch)))],
            pip_requirements=[f"{name}=={public_version(name)}" for name in REQUIRED],
            signature=ModelSignature(
                inputs=Schema([ColSpec(DataType.string, "sentence")]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, width))]),
                params=ParamSchema(
                    [
                        ParamSpec("input_type", text, None),
                        ParamSpec("strategy", text, None),
                        ParamSpec("threshold", real, None),
                        ParamSpec("min_layer", whole, None),
                        ParamSpec("layer", whole, None),
                        ParamSpec("return_exit_layers", yes_no, False),
                    ]
                ),
            ),
            # Lets MLflow show and serve a request that works; it is not run here, the signature is given.
            input_example=pd.DataFrame({"sentence": EXAMPLE}),
            metadata=metadata,
        )


def public_version(package: str) -> str:
    """Return the installed version as PyPI has it: without the local part that names a build, as in 2.13.0+cpu."""
    return version(package).partition("+")[0]
