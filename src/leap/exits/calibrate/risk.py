"""Learn-then-Test: which of several exit policies are safe, with stated confidence.

Angelopoulos, Bates, Candès, Jordan, Lei: "Learn then Test: Calibrating Predictive Algorithms to Achieve Risk
Control" (arXiv 2110.01052); CALM (Schuster et al., arXiv 2207.07061) uses it for tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scipy.special import bdtr


@dataclass(frozen=True)
class Demand:
    """What is to hold: of the vectors that exit, at most the share `risk` lies below `floor`.

    floor: cosine to the full-depth vector.
    risk: the largest share of exited vectors below the floor.
    confidence: how sure that must be.
    """

    floor: float = 0.94
    risk: float = 0.05
    confidence: float = 0.95

    def check(self) -> None:
        """Refuses what cannot be demanded.

        Raises:
            ValueError: a value is out of range.
        """
        faults = [] if -1 < self.floor <= 1 else [f"floor {self.floor} is not a cosine above -1"]
        for name in ("risk", "confidence"):
            if not 0 < getattr(self, name) < 1:
                faults.append(f"{name} {getattr(self, name)} must lie between 0 and 1")
        if faults:
            raise ValueError("; ".join(faults))


def p_value(exited: int, bad: int, risk: float) -> float:
    """P(Bin(exited, risk) <= bad): how likely so few bad ones are if the true share is above `risk`.

    Given that a sentence exits, being bad is one draw with the policy's true share, so the count of bad ones
    among `exited` is binomial; this is the exact p-value of "the share is above risk". 1 where none exits.
    """
    return float(bdtr(bad, exited, risk)) if exited else 1.0


def fixed_sequence(
    order: Sequence[int], counts: Callable[[int], tuple[int, int]], risk: float, level: float
) -> Iterator[int]:
    """The policies shown to be safe: tested one after the other, up to the first that is not.

    The order must not depend on the sentences behind `counts`. Then the chance that any policy given is
    unsafe is at most `level`: the first unsafe one in the order must pass a test at that level (fixed
    sequence testing, Learn-then-Test section 4). So any of them may be chosen afterwards, by the same counts.

    Args:
        order: indices of the policies, the safest first.
        counts: gives a policy's (exited, bad) on the sentences kept for the test.
        risk: alpha.
        level: delta.

    Yields:
        Indices.
    """
    for index in order:
        if p_value(*counts(index), risk) > level:
            return
        yield index
