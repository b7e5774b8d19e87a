"""Makes MLflow's runs and the registry agree with the evidence and the verdicts on disk.

    python stages/promote.py

Always run, and quick where nothing is to be done: so `dvc repro` promotes also after `make clean`, `dvc pull` or a
lost server. Writes nothing into the project but mlruns/.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.registry.promotion import synchronise


@stage()
def promote(run: Run) -> dict[str, Any]:
    return synchronise(run.settings, run.project)
