"""Sample sizes: how many sentences a statement needs, known from the settings, before any text is read."""

import math

# Calibration splits its sentences into fit, order and test; only the test part is evidence.
PARTS = 3
# The k of NN@k: an index needs more sentences than that.
NEIGHBOURS = 10


def fewest_draws(share: float, level: float) -> int:
    """Return how many draws it takes to show that a share of failures is below `share`, even if none fails.

    n draws without a failure have probability (1 - share)^n where the share is exactly `share`; no test at
    significance level `level` can reject before that falls to `level`.
    """
    return math.ceil(math.log(level) / math.log1p(-share))


def fewest_to_calibrate(risk: float, confidence: float, keep: float) -> int:
    """Return how many different sentences calibration takes at least; it should have thousands.

    A third of them tests, and each of two families of scores is tested at half of 1 - confidence.
    """
    level = (1 - confidence) / 2
    return PARTS * max(fewest_draws(risk, level), fewest_draws(1 - keep, level), NEIGHBOURS + 1)


def surely_held_out(sentences: int, share: float) -> int:
    """Return how many sentences are held out, but for one case in a thousand, until `sentences` others are taken.

    Each sentence is held out by a draw of its own (`leap.extract.sample`); three standard deviations less than
    the expected number.
    """
    if not 0 < share < 1:
        return 0
    drawn = sentences / (1 - share)
    return max(0, math.floor(drawn * share - 3 * math.sqrt(drawn * share * (1 - share))))
