"""Takes the pictures of MLflow's page that docs/tracking.md shows, from the runs of this project.

    pip install playwright                      # drives the Chromium that is installed; downloads none
    leap track && python scripts/screenshots.py

Starts `mlflow ui` on a free port, opens each page in a headless Chromium, and ends both.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from leap.settings import Settings, read_settings

DATABASE = Path("mlruns/mlflow.db")
SIZE = {"width": 1440, "height": 900}
COLOURS = 128


def main() -> None:
    """All pictures, or those named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", nargs="*", help="names of pictures without their ending")
    arguments = parser.parse_args()
    settings = read_settings(arguments.params)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with server() as address, browser() as page:
        for name, take in pictures(settings, address).items():
            if not arguments.only or name in arguments.only:
                take(page)
                save(page, arguments.out / f"{name}.png")


@contextmanager
def server() -> Iterator[str]:
    """MLflow's page on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", f"sqlite:///{DATABASE}"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(address)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def wait_for(address: str) -> None:
    """Returns when the page answers."""
    for _ in range(120):
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    sys.exit("mlflow ui did not start within two minutes")
