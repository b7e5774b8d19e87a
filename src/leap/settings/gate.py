"""The gate's checks: data, not code."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from leap.settings.base import Block, Name


class Check(Block):
    """One check of the gate: a metric of the evidence against one bound.

    `metric` is a path into the evidence (`exit.rate`, `sts.drop_vs_full`, `retrieval.*.drop`);
    docs/architecture.md lists them. A star stands for every data set, each of which must pass.
    """

    metric: str = Field(pattern=r"^[a-z0-9_]+(\.([a-z0-9_]+|\*))+$")
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    # Judge the bound of the 95 % interval that is worse for the model, where the evidence has one.
    by_interval: bool = False
    severity: Literal["refuse", "warn"] = "refuse"

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        bounds = [self.above, self.at_least, self.below, self.at_most]
        if sum(bound is not None for bound in bounds) != 1:
            raise ValueError("give exactly one of above, at_least, below and at_most")
        return self


class GateSettings(Block):
    """What the registry promotes, and by which checks."""

    registered_model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    # The variants that a candidate is compared with; a variant compared with itself drops by nothing.
    baseline: Name
    fixed_depth: Name
    # A candidate replaces the champion only if this metric is not worse.
    primary_metric: str
    checks: Annotated[dict[Name, Check], Field(min_length=1)]
