"""A real `mlflow server`, which can be stopped and started again."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from made_store import fresh_store

from leap.tracking.store import DATABASE


class Server:
    """`mlflow server` on a free loopback port, which keeps its data over a stop and a start."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.stored = folder / "stored"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        database = self.folder / "server.db"
        if not database.exists():
            # A store made before: the server's first start would spend its time on creating one.
            shutil.copyfile(fresh_store() / DATABASE, database)
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
        command += ["--port", str(self.port), "--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", str(self.stored)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        for _ in range(900):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1)
                return
            except (urllib.error.URLError, TimeoutError):
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.2)
        raise AssertionError("the server did not start in three minutes")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None
