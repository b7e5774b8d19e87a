"""Takes the pictures of MLflow's page that docs/tracking.md shows, from the runs of this project.

    pip install playwright                      # drives the Chromium that is installed; downloads none
    leap track && python tools/screenshots.py

Starts `mlflow ui` on a free port, opens each page in a headless Chromium, and ends both.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from leap.core.settings import Settings, read_settings

DATABASE = Path("mlruns/mlflow.db")
SIZE = {"width": 1440, "height": 1070}
COLOURS = 128
# MLflow animates its charts; there is no sign on the page that it is done.
DRAWN_MS = 6000
# The search field of the charts takes regular expressions.
EXIT = "exit/(expected_layers|nn_at_10|nn_fail_50|rate|similarity|similarity_p05)$"
# MLflow's page opens its assistant the first time unless it is told that it did and was closed.
CLOSED = {
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}


def main() -> None:
    """All pictures, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, env=quiet, stdout=nothing, stderr=nothing)  # nosec B603  # fixed words
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
            urllib.request.urlopen(address, timeout=5).close()  # nosec B310  # this machine's own server
        except OSError:
            time.sleep(1)
        else:
            return
    sys.exit("mlflow ui did not start within two minutes")


@contextmanager
def browser() -> Iterator[Page]:
    """A page of the installed Chromium, with MLflow's assistant closed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("no chromium on this machine: install it, for example apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = started.new_page(viewport=SIZE)
        page.set_default_timeout(90_000)
        for key, value in CLOSED.items():
            page.add_init_script(f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)})")
        try:
            yield page
        finally:
            started.close()


def pictures(settings: Settings, address: str) -> dict[str, Callable[[Page], None]]:
    """What each picture shows: opens the page and waits until it is drawn."""
    client = MlflowClient(f"sqlite:///{DATABASE}")
    experiment = client.get_experiment_by_name(settings.experiment)
    if experiment is None:
        sys.exit(f"no experiment {settings.experiment}: run `dvc repro` or `leap track` first")
    number, name = experiment.experiment_id, settings.registered_model
    champion = client.get_model_version_by_alias(name, "champion").version
    # MLflow has no IN for tags.
    others = [variant for variant in settings.variants if variant not in (settings.gate.baseline, "leap")]
    pair = " AND ".join(f"tags.leap.variant != '{variant}'" for variant in others)
    return {
        "tracking-exits": lambda page: charts(page, address, number, pair, EXIT),
        "tracking-terms": lambda page: charts(page, address, number, "tags.leap.variant != ''", "loss/"),
        "tracking-layers": lambda page: charts(page, address, number, "tags.leap.variant != ''", "layers/"),
        "tracking-model": lambda page: show(page, f"{address}/#/models/{name}", "champion"),
        "tracking-verdict": lambda page: show(page, f"{address}/#/models/{name}/versions/{champion}", "checks"),
    }


def show(page: Page, address: str, text: str) -> None:
    """Opens a page and waits for a text on it and for what is drawn after that."""
    page.goto("about:blank")
    page.goto(address)
    training = page.get_by_text("Model training", exact=True)
    training.first.wait_for()
    training.first.click()
    page.goto("about:blank")
    page.goto(address)
    page.get_by_text(text).first.wait_for()
    page.wait_for_timeout(DRAWN_MS)


def charts(page: Page, address: str, experiment: str, runs: str, metrics: str) -> None:
    """The chart view of the runs that a filter finds, only the metrics that begin so."""
    query = f"?compareRunsMode=CHART&startTime=ALL&searchFilter={quote(runs)}"
    show(page, f"{address}/#/experiments/{experiment}/runs{query}", "baseline-1")
    page.get_by_placeholder("Search metric charts").fill(metrics)
    page.wait_for_timeout(DRAWN_MS)


def save(page: Page, target: Path) -> None:
    """The window as a PNG of few colours."""
    page.screenshot(path=target)
    with Image.open(target) as picture:
        small: Any = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


if __name__ == "__main__":
    main()
