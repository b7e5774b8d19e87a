"""Learn-then-Test: which of several exit policies are safe, with stated confidence.

Angelopoulos, Bates, Candès, Jordan, Lei: "Learn then Test: Calibrating Predictive Algorithms to Achieve Risk
Control" (arXiv 2110.01052); CALM (Schuster et al., arXiv 2207.07061) uses it for tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Demand:
    """The two statements that a calibration must show.

    floor: cosine to the full-depth vector.
    risk: the largest share of exited vectors below the floor.
    confidence: the probability that both statements hold.
    keep: the smallest mean share of a sentence's ten nearest neighbours at full depth that must stay.
    """

    floor: float = 0.94
    risk: float = 0.05
    confidence: float = 0.95
    keep: float = 0.8

    def check(self) -> None:
        faults = [] if -1 < self.floor <= 1 else [f"floor {self.floor} is not a cosine above -1"]
        for name in ("risk", "confidence", "keep"):
            if not 0 < getattr(self, name) < 1:
                faults.append(f"{name} {getattr(self, name)} must lie between 0 and 1")
        if faults:
            raise ValueError("; ".join(faults))


def share_p_value(exited: int, bad: int, risk: float) -> float:
    """Return P(Bin(exited, risk) <= bad), the exact p-value of "the share of bad ones is above risk".

    Given that a sentence exits, being bad is one draw with the policy's true share, so the count of bad ones
    among `exited` is binomial. 1 where none exits.
    """
    if bad >= exited:
        return 1.0
    failures = torch.arange(bad + 1, dtype=torch.float64)
    total = torch.tensor(float(exited), dtype=torch.float64)
    ways = torch.lgamma(total + 1) - torch.lgamma(failures + 1) - torch.lgamma(total - failures + 1)
    logs = ways + failures * math.log(risk) + (total - failures) * math.log1p(-risk)
    return min(1.0, math.exp(logs.logsumexp(0).item()))


def mean_p_value(values: Tensor, least: float, level: float) -> float:
    """Return a p-value of "the mean is below `least`", valid for any distribution on [0, 1] and any size.

    A gambler who bets on values above `least` cannot expect to gain if their mean is not above it, so the
    chance that the capital ever reaches 1 / p is at most p (Ville's inequality). The bets are Waudby-Smith
    and Ramdas' (arXiv 2010.09686), as in "Distribution-Free, Risk-Controlling Prediction Sets" (Bates et al.,
    arXiv 2101.02703): they grow with the precision of the values already seen, which makes it narrower than
    Hoeffding's bound where the values vary little.

    Args:
        values: [N] in [0, 1], independent draws in an order that does not depend on them.
        least: the mean to exceed, in (0, 1).
        level: the significance level that the bets are tuned for; the p-value is valid for every level.
    """
    if not len(values):
        return 1.0
    draws = values.double()
    seen = torch.arange(1, len(draws) + 1, dtype=torch.float64)
    mean = (0.5 + draws.cumsum(0)) / (1 + seen)
    variance = (0.25 + (draws - mean).square().cumsum(0)) / (1 + seen)
    # A bet may know only what came before it; the first one assumes the largest possible variance.
    before = torch.cat([torch.full_like(variance[:1], 0.25), variance[:-1]])
    # At most 1, so that capital stays positive whatever comes: 1 - least > 0.
    bets = (2 * math.log(1 / level) / (len(draws) * before)).sqrt().clamp_max(1.0)
    highest = (bets * (draws - least)).log1p().cumsum(0).max().item()
    return min(1.0, math.exp(-highest))


def fixed_sequence(order: Sequence[int], p_value: Callable[[int], float], level: float) -> Iterator[int]:
    """Yield the hypotheses that are rejected, in order, up to the first that is not.

    The order, most likely to be safe first, must not depend on the draws behind `p_value`. Then the chance that
    any hypothesis yielded is true is at most `level`: the first true one in the order must pass a test at that
    level (fixed sequence testing, Learn-then-Test section 4). So any policy yielded may be chosen afterwards,
    by the same draws.
    """
    for index in order:
        if p_value(index) > level:
            return
        yield index
