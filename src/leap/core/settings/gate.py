"""The gate's checks: data, not code."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from leap.core.settings.base import Block, Name


class Check(Block):
    """One check of the gate: a metric of the evidence against one bound.

    `metric` is a path into the evidence, and its first part the scope: `exit.rate` speaks of the layers where
    sentences really leave, `layers.6.nn_at_10` of one layer, `sts.spearman_exit` of the primary set,
    `sts.qqp.drop_vs_full` and `retrieval.arguana.drop` of a data set; docs/architecture.md lists them. A star
    stands for every data set that no other check names with the same metric; each of them must pass.
    """

    metric: str = Field(pattern=r"^[a-z0-9_]+(\.([a-z0-9_]+|\*))+$")
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = Field(default=None, validate_default=True)
    # Judge the bound of the 95 % interval that is worse for the model; without an interval the check fails.
    by_interval: bool = False
    severity: Literal["refuse", "warn"] = "refuse"

    @field_validator("at_most")
    @classmethod
    def _one_bound(cls, at_most: float | None, others: ValidationInfo) -> float | None:
        read = {name: others.data[name] for name in ("above", "at_least", "below") if name in others.data}
        given = [value for value in (*read.values(), at_most) if value is not None]
        if len(given) > 1 or (not given and len(read) == 3):
            raise ValueError("give exactly one of above, at_least, below and at_most")
        return at_most


class CardSettings(Block):
    """The model card's facts that the project's files do not have."""

    # SPDX identifiers in lower case, as the hub's front matter has them.
    license: str = Field(min_length=1)
    language: Annotated[list[str], Field(min_length=1)]
    # The teacher's name on the hub; null: the teacher's own where it comes from there.
    base_model: str | None = None
    # Licence of each source of text that is not an installed package, whose metadata say theirs.
    data_licenses: dict[Name, str] = {}


class GateSettings(Block):
    """The checks by which the registry promotes."""

    # null: leap-<names of data.sources>
    registered_model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] | None = None
    # The variants that a candidate is compared with; they are judged like any other and never promoted. Null:
    # there is none, and the checks against it do not apply.
    baseline: Name | None = None
    fixed_depth: Name | None = None
    # A candidate replaces the champion only if this metric is not worse.
    primary_metric: str
    # Where latency must have been measured, as evidence names it ("NVIDIA H100 80GB HBM3", "AMD EPYC, 2
    # cores"); null: on the machine that the gate runs on.
    target_hardware: str | None = None
    checks: Annotated[dict[Name, Check], Field(min_length=1)]
    card: CardSettings
