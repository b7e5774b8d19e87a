"""`leap serve`: opens the model, a registered one too, and serves it until a signal comes."""

import logging
import tempfile
from pathlib import Path
from typing import Any

from leap.core.settings import read_settings
from leap.exits import LeapEncoder
from leap.registry.export_source import model_folder
from leap.serve import Monitor
from leap.serve.http_server import serve

log = logging.getLogger(__name__)


def run_serve(model: str, name: str | None, params: Path, device: str, **options: Any) -> None:
    """Serve a folder, package, hub id or registered model; `options` are those of `http_server.serve`.

    Raises:
        UserError: there is no such model, or a limit in the environment is no number.
    """
    with tempfile.TemporaryDirectory() as scratch:
        registered = model.startswith("models:/")
        folder = model_folder(model, read_settings(params), Path(scratch)) if registered else model
        encoder = LeapEncoder(folder, device)
        encoder.monitor = Monitor.from_environment(encoder)
        called = name or encoder.folder.name
        log.info("serving %s on http://%s:%d/v1/embeddings", called, options["host"], options["port"])
        serve(encoder, called, **options)
