"""An exit policy as numbers that a GPU can compare by itself: one threshold a layer, and the last layer."""

import math
from typing import NamedTuple

from leap.exits.policy import Capped, ExitPolicy, Fixed


class Plan(NamedTuple):
    """Leave after the first layer l whose cos(p_l, p_{l-k}) reaches its threshold; at `stop` all leave.

    thresholds: one a layer; infinity where no row may leave.
    patience: k.
    stop: the last layer that is computed.
    """

    thresholds: tuple[float, ...]
    patience: int
    stop: int

    @property
    def tests(self) -> tuple[int, ...]:
        layers = range(self.patience + 1, self.stop)
        return tuple(layer for layer in layers if self.thresholds[layer - 1] < math.inf)

    @property
    def exits_at(self) -> tuple[int, ...]:
        """All layers at which rows may leave."""
        return (*self.tests, self.stop)

    def flags(self) -> list[int]:
        """The work at each layer's output, index 0 the embeddings': 0 nothing, 1 pool it, 2 test it too.

        Only layers that a test needs are pooled; the layer `stop` is pooled anyway, after the last step.
        """
        tests = set(self.tests)
        pooled = {layer - self.patience for layer in tests}
        layers = range(len(self.thresholds) + 1)
        return [2 if layer in tests else int(layer in pooled) for layer in layers]


def plan_of(policy: ExitPolicy, depth: int) -> Plan | None:
    """A policy's plan; None where it looks at something else than the consecutive similarity."""
    if isinstance(policy, Fixed):
        return fixed_plan(policy.layer, depth)
    if isinstance(policy, Capped):
        plan = plan_of(policy.policy, depth)
        return plan and plan._replace(stop=policy.most)
    limits = policy.layer_thresholds(depth)
    if limits is None:
        return None
    return Plan(tuple(limits.thresholds.tolist()), limits.patience, depth)


def fixed_plan(layer: int, depth: int) -> Plan:
    """Return a plan by which every row leaves at one layer."""
    return Plan((math.inf,) * depth, 1, layer)
