"""`leap.results()`: the headline figures of a project as a pandas table, for a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leap.core.files import read_json
from leap.core.project import Project
from leap.report.findings import figures, verdict_word

if TYPE_CHECKING:
    import pandas as pd


def results(folder: str | Path = ".") -> pd.DataFrame:
    """Read the figures of the last report, a row a variant and seed.

    Args:
        folder: the project's root.

    Returns:
        Indexed by `variant` and `seed`; columns named as in `dvc metrics show` (layers, exit_rate, similarity,
        nn_at_10, sts_full, sts_exit, ndcg_full, ndcg_query, ndcg_exit, speed_up, query_speed_up), and
        `verdict`; NaN where a figure was not measured.

    Raises:
        UserError: there is no report yet.

    Example:
        >>> leap.results().groupby("variant")["sts_exit"].mean()
    """
    import pandas as pd

    summary = read_json(Project(Path(folder)).reports / "summary.json", "dvc repro")
    rows = [
        {
            "variant": name,
            "seed": int(seed),
            **figures(content),
            "verdict": verdict_word({"role": None, **variant, **content}),
        }
        for name, variant in summary["variants"].items()
        for seed, content in variant["seeds"].items()
    ]
    table = pd.DataFrame(rows).drop(columns="passed").set_index(["variant", "seed"])
    # A figure that no variant has would be a column of None.
    return table.astype(dict.fromkeys(table.columns.drop("verdict"), float))
