"""Checks what was extracted by Great Expectations: data/validation.json and the pages in reports/data_docs/.

    python stages/validate.py

A failed expectation stops the pipeline; the evidence of it is written first.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.validate.check import check_extracted


@stage()
def validate(run: Run) -> dict[str, Any]:
    results = check_extracted(run.settings, run.project)
    return {"rows": results.rows, "expectations": len(results.expectations)}
