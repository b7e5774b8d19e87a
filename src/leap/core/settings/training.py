"""The student: its shape, how it starts, its objective and its training (paper, Appendix L)."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from leap.core.settings.base import Block, Fraction, Weight
from leap.core.settings.sources import ModelSource


class ColdStart(Block):
    """Random layers; embeddings from the teacher's (by PCA where the widths differ) or random too."""

    kind: Literal["cold"]
    embeddings: Literal["teacher", "random"] = "teacher"


class GrownStart(Block):
    """Layers copied from the teacher: `stack` repeats the whole teacher, `double` repeats each layer."""

    kind: Literal["grow"]
    order: Literal["stack", "double"]


class TeacherStart(Block):
    """The teacher's own weights in the teacher's shape: a retrofit, which teaches a model to exit."""

    kind: Literal["teacher"]
    # The embeddings and so many first layers stay as they are: with little text full depth then moves hardly, and
    # a step costs less.
    frozen: int = Field(default=0, ge=0)


Start = Annotated[ColdStart | GrownStart | TeacherStart | ModelSource, Field(discriminator="kind")]


class StudentSettings(Block):
    """A BERT-style encoder."""

    layers: int = Field(ge=1)
    width: int = Field(ge=8)
    heads: int = Field(ge=1)
    intermediate: int = Field(ge=8)
    max_length: int = Field(ge=8, le=8192)
    start: Start

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, others: ValidationInfo) -> int:
        width = others.data.get("width", heads)
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}")
        return heads


class LayerWeights(Block):
    """w_l of the exit loss: `early` below late_from, `late` from there on, `final` at the last layer."""

    early: Weight
    late: Weight
    final: Weight
    late_from: int = Field(ge=1)

    @field_validator("final")
    @classmethod
    def _not_all_zero(cls, final: float, others: ValidationInfo) -> float:
        if final + others.data.get("early", 1.0) + others.data.get("late", 1.0) == 0:
            raise ValueError("at least one of early, late and final must be above 0")
        return final


class LossSettings(Block):
    """The paper's objective, by its symbols (§3.2 and Appendix L); docs/paper.md has the open points.

    The settings from beta_teacher on are not the paper's: where they are left out, the loss is the paper's.
    """

    kind: Literal["leap"]
    alpha: Weight
    beta: Weight
    beta_student: Weight
    gamma: Weight
    delta: Weight
    epsilon: Weight
    tau: Annotated[float, Field(ge=-1.0, le=1.0)]
    tau_c: Annotated[float, Field(gt=0.0)]
    margin: Literal["sigmoid", "softplus", "hinge"]
    slope: Annotated[float, Field(gt=0.0)]
    layer_weights: LayerWeights
    late_from: int = Field(ge=1)
    redundancy_clip: Annotated[float, Field(gt=0.0)]
    ramp: Annotated[tuple[Fraction, Fraction], Field(strict=False)]  # YAML has lists
    layer_map: Literal["uniform", "interpolate"]
    # Weight of the teacher's final layer as target within the exit loss; beta_student is that of the other half.
    beta_teacher: Weight = 1.0
    # Shares of the width at which the whole loss is applied as well, to the first dimensions (MatryoshkaLoss).
    matryoshka: Annotated[tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...], Field(strict=False)] = ()
    # A linear map a layer below the last, trained with the student: what leaves there is p_l + p_l Delta_l.
    heads: bool = False
    # The heads before the first step: nothing added (zero), or the map from each layer to the last one by ridge
    # regression on the training text, for a student that starts as its teacher.
    heads_start: Literal["zero", "ridge"] = "zero"
    # Weight of the contrastive term at every layer below the last, through its head where there are heads; its
    # layers weigh as those of the exit loss.
    exit_contrast: Weight = 0.0
    # What an exited vector is compared with there: exited vectors, or the batch's full-depth vectors (an index).
    exit_contrast_with: Literal["exits", "final"] = "exits"
    # How much of the exit terms' gradient passes through the heads into the layers: 0 trains the heads alone.
    exit_gradient: Fraction = 1.0
    # Weight of 1 - cos between full depth and full depth at the start; needs student.start {kind: teacher}.
    anchor: Weight = 0.0

    @field_validator("ramp")
    @classmethod
    def _ramp_rises(cls, ramp: tuple[float, float]) -> tuple[float, float]:
        if ramp[0] > ramp[1]:
            raise ValueError("must rise")
        return ramp


class AdaptiveLayerSettings(Block):
    """sentence-transformers' own AdaptiveLayerLoss, its arguments by its own names, around a distillation loss.

    The base loss is 1 - cos to the teacher's final vector (its EmbedDistillLoss) + delta L_contrast.
    """

    kind: Literal["adaptive_layer"]
    # Drawn at every step in addition to the final layer; -1 takes all.
    n_layers_per_step: int = Field(ge=-1)
    last_layer_weight: Weight
    prior_layers_weight: Weight
    kl_div_weight: Weight
    # 0 leaves the KL term out.
    kl_temperature: Weight
    layer_weighting: Literal["uniform", "log", "linear"]
    delta: Weight
    tau_c: Annotated[float, Field(gt=0.0)]

    @field_validator("n_layers_per_step")
    @classmethod
    def _not_zero(cls, drawn: int) -> int:
        if drawn == 0:
            raise ValueError("must be -1 (all layers) or at least 1")
        return drawn


Loss = Annotated[LossSettings | AdaptiveLayerSettings, Field(discriminator="kind")]


class TrainSettings(Block):
    """The trainer."""

    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    learning_rate: Annotated[float, Field(gt=0.0)]
    warmup: Fraction
    weight_decay: Weight
    max_grad_norm: Annotated[float, Field(gt=0.0)]
    max_length: int = Field(ge=8)
    # auto: bf16 where it is the faster one, on CUDA and on a CPU with matrix units for it (AMX).
    precision: Literal["auto", "fp32", "bf16"]
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    # auto: cached, unless the cache would take more than 20 GB.
    teacher: Literal["auto", "cached", "online"]
    # Of this machine: one a GPU. Several machines: start the stage by torchrun itself (docs/training.md).
    processes: int = Field(ge=1)
    # On CUDA: compiled layers and, in one process, the whole step as one CUDA graph.
    compile: bool
    log_every: int = Field(ge=1)
    checkpoint_every: int = Field(ge=1)
    keep_checkpoints: int = Field(ge=1)

    @field_validator("processes")
    @classmethod
    def _processes_share_a_batch(cls, processes: int, others: ValidationInfo) -> int:
        batch_size = others.data.get("batch_size", 0)
        if batch_size % processes:
            raise ValueError(f"batch_size {batch_size} is not a multiple of processes {processes}")
        return processes


class CalibrationSettings(Block):
    """The two statements that calibrated exits must show, each with `confidence`.

    At most the share `risk` of the exited vectors has a cosine to full depth below `floor`; and of a sentence's
    ten nearest neighbours at full depth, on average at least the share `keep` stays.
    """

    floor: Annotated[float, Field(gt=-1.0, le=1.0)]
    risk: Annotated[float, Field(gt=0.0, lt=1.0)]
    keep: Annotated[float, Field(gt=0.0, lt=1.0)]
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)]


class ExitSettings(Block):
    """The deployable exit rule (Algorithm 1): theta, l_min and k; and the settings of what is fitted for exits."""

    # Above 1 would never exit by rounding luck alone; full depth has its own strategy.
    threshold: Annotated[float, Field(ge=-1.0, le=1.0)]
    min_layer: int = Field(ge=1)
    patience: int = Field(ge=1)
    # Fit predictors of similarity to full depth on the training sentences, for strategy `predictors`.
    predictors: bool = False
    # The layer at which `encode_query` leaves, documents being encoded to full depth; null: both as `encode`.
    query_layer: int | None = Field(default=None, ge=1)
    # Thresholds for strategy `calibrated`, tested on data.held_out; none are made if null.
    calibration: CalibrationSettings | None = None

    def rule(self) -> dict[str, Any]:
        """Return the arguments of `leap.exits.rules.ExitRule`."""
        return self.model_dump(include={"threshold", "min_layer", "patience"})
