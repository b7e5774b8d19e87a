"""Settings of measurements and of tracking."""

import re
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from leap.core.settings.base import Block, Fraction

Positive = Annotated[int, Field(ge=1)]


class SweepSettings(Block):
    """The exit rules that are tried on the diagnosed sentences, all combinations, after one pass."""

    thresholds: Annotated[list[Fraction], Field(min_length=1)]
    # Those below the model's depth are tried.
    min_layers: Annotated[list[Positive], Field(min_length=1)]
    patience: Annotated[list[Positive], Field(min_length=1)]


class EvaluationSettings(Block):
    """Diagnosis, similarity and retrieval."""

    batch_size: int = Field(ge=1)
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    # The pair set whose sentences are diagnosed and whose Spearman is the summary's.
    primary_set: str
    nn_k: int = Field(ge=1)
    # The longest token count of each length bin but the last.
    length_bins: list[Positive]
    sweep: SweepSettings
    # Gigabytes of encoded vectors kept in data/vectors; 0 keeps none.
    cache_gb: Annotated[float, Field(ge=0.0)]
    bootstrap: int = Field(ge=100)
    seed: int = Field(ge=0)

    @field_validator("length_bins")
    @classmethod
    def _bins_ascend(cls, bins: list[int]) -> list[int]:
        if any(low >= high for low, high in pairwise(bins)):
            raise ValueError("must ascend")
        return bins


class LatencySettings(Block):
    """The latency benchmark; paper, Appendix "Latency Measurement": 50 warm-up, 200 iterations."""

    batch_sizes: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    # "sentences" as they are, or joined to rows of so many tokens.
    lengths: Annotated[list[Literal["sentences"] | Annotated[int, Field(ge=8)]], Field(min_length=1)]
    warmup: int = Field(ge=0)
    iterations: int = Field(ge=5)
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: str = Field(pattern=r"^(fp32|fp16)$")


class TrackingSettings(Block):
    """Where MLflow keeps runs and models; docs/architecture.md, "Tracking"."""

    # false: nothing is logged and MLflow is not needed; the result files are all there is.
    enabled: bool
    # null: SQLite and artefacts under mlruns/ of this project. Else a server, http(s)://..., or a database.
    uri: str | None
    # null: leap-<names of data.sources>
    experiment: str | None = None
    # auto: everything but an experiment of DVC (`dvc exp run`), which is logged only; always; never.
    promote: Literal["auto", "always", "never"] = "auto"

    @field_validator("uri")
    @classmethod
    def _a_store_that_mlflow_opens(cls, uri: str | None) -> str | None:
        if uri is None or uri == "databricks":
            return uri
        if re.match(r"https?://[^/@]*:[^/@]*@", uri):
            raise ValueError(
                "holds a password, which git and DVC would keep: set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD in the environment instead"
            )
        if re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://.", uri):
            return uri
        if re.match(r"[\w.-]+:\d+(/|$)", uri):
            raise ValueError(f"a server is named with its scheme: http://{uri}")
        raise ValueError(
            "is neither a server, http(s)://host:port, nor a database, sqlite:///path: null is the store of this "
            "project, under mlruns/"
        )
