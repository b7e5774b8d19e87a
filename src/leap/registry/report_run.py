"""The report in MLflow: one run a profile, which always holds the newest page."""

from __future__ import annotations

import logging
from pathlib import Path

from leap.core.files import sha256_of
from leap.core.settings import Settings
from leap.tracking.store import Tracking, failures, first_line, one_at_a_time

logger = logging.getLogger(__name__)


def log_report(settings: Settings, folder: Path) -> bool:
    """Logs report.html, report.md, summary.json and the pictures of `folder`, unless MLflow has them.

    A store that cannot be reached costs a warning.

    Returns:
        Whether MLflow now has the report.
    """
    tracking = Tracking.open(settings)
    client = tracking.client
    if client is None:
        return False
    digest = sha256_of(folder / "report.html")
    try:
        with one_at_a_time("runs"):
            found = tracking.find({"leap.report": settings.profile})
            run = found[0] if found else tracking.create_run("report", {"leap.report": settings.profile})
            if run.data.tags.get("leap.logged.report") != digest:
                for name in ("report.html", "report.md", "summary.json"):
                    client.log_artifact(run.info.run_id, str(folder / name))
                if (folder / "plots").is_dir():
                    client.log_artifacts(run.info.run_id, str(folder / "plots"), "plots")
                client.set_terminated(run.info.run_id, "FINISHED")
                client.set_tag(run.info.run_id, "leap.logged.report", digest)
    except failures() as error:
        logger.warning("tracking: %s; `leap track` logs the report later", first_line(error))
        return False
    return True
