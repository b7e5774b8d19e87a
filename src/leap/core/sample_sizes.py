"""How many sentences a statement needs: known from the settings, before any text is read."""

import math


def fewest_exited(risk: float, level: float) -> int:
    """Return how many exited sentences the exact binomial test needs, even if none of them is bad.

    Args:
        risk: the share of bad ones that is to be refuted.
        level: of the test.
    """
    return math.ceil(math.log(level) / math.log1p(-risk))


def fewest_to_calibrate(risk: float, confidence: float) -> int:
    """Return how many different sentences calibration takes at least: a third of them tests, at half the level."""
    return 3 * fewest_exited(risk, (1 - confidence) / 2)


def surely_held_out(sentences: int, share: float) -> int:
    """Return how many sentences are held out, but for one case in a thousand, until `sentences` others are taken.

    Each sentence is held out by a draw of its own (`leap.extract.sample`); three standard deviations less than
    the expected number.
    """
    if not 0 < share < 1:
        return 0
    drawn = sentences / (1 - share)
    return max(0, math.floor(drawn * share - 3 * math.sqrt(drawn * share * (1 - share))))
