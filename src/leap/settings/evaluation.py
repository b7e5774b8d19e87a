"""How models are measured."""

from typing import Annotated, Literal

from pydantic import Field

from leap.settings.base import Block


class EvaluationSettings(Block):
    """Diagnosis, similarity and retrieval."""

    batch_size: int = Field(ge=1)
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    # The pair set whose sentences are diagnosed and whose Spearman is the summary's.
    primary_set: str
    nn_k: int = Field(ge=1)
    bootstrap: int = Field(ge=100)
    seed: int = Field(ge=0)


class LatencySettings(Block):
    """The latency benchmark; paper, Appendix "Latency Measurement": 50 warm-up, 200 iterations."""

    batch_sizes: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    # "sentences" as they are, or joined to rows of so many tokens.
    lengths: Annotated[list[Literal["sentences"] | Annotated[int, Field(ge=8)]], Field(min_length=1)]
    rivals: list[Literal["sentence_transformers", "torch_compile", "onnxruntime"]]
    warmup: int = Field(ge=0)
    iterations: int = Field(ge=5)
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: str = Field(pattern=r"^(fp32|fp16)$")


class TrackingSettings(Block):
    """Where MLflow keeps runs and models; docs/architecture.md, "Tracking"."""

    # null: SQLite and artefacts under mlruns/ of this project. Else a server, http(s)://...
    uri: str | None
    experiment: str
