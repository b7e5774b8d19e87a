"""When two windows of a served model raise an alert."""

from pydantic import Field

from leap.core.settings.base import Block, Fraction


class MonitoringSettings(Block):
    """The limits of `leap monitor`; `leap.serve.compare_windows` says where the paper has each."""

    max_layer_shift: float = Field(gt=0)
    max_nn_drop: Fraction
    max_nn_fail: Fraction
    min_exit_rate: Fraction
    max_score_shift: float = Field(gt=0)
    min_sentences: int = Field(ge=1)
