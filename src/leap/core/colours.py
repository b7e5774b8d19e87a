"""The variants' colours, the same in the report, in DVC's plots and in MLflow."""

from collections.abc import Iterable

# Okabe and Ito's, which people with any kind of colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# These keep theirs whichever others a report has, so that two reports can be laid side by side.
FIRST = ("baseline", "leap", "leap_plus", "fixed_depth")


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour a name; names that have none of their own take the free ones in their order."""
    unique = list(dict.fromkeys(names))
    own = {name: COLOURS[i] for i, name in enumerate(FIRST) if name in unique}
    free = [colour for colour in COLOURS if colour not in own.values()] or list(COLOURS)
    others = [name for name in unique if name not in own]
    return own | {name: free[i % len(free)] for i, name in enumerate(others)}
