"""The proof of the evaluators as it was measured last, for the report."""

from pathlib import Path
from typing import Any

import leap
from leap.core.files import read_json

FILE = Path(leap.__file__).parent / "report" / "templates" / "evaluators.json"


def read_proof() -> dict[str, Any] | None:
    """Published scores measured by this project's evaluators: `figures`, `model`, `date`, `environment`.

    Null where `tools/prove_evaluators.py` has not been run.
    """
    if not FILE.is_file():
        return None
    proof: dict[str, Any] = read_json(FILE, "python tools/prove_evaluators.py DATA")
    return proof
