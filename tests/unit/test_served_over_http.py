"""`leap serve` as a process: it answers on its port, and stops only when every request has its answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.client import HTTPConnection
from pathlib import Path

import pytest

import leap
from leap.serve.window import read_windows


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def post(port: int, texts: list[str], sent: threading.Semaphore) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"input": texts})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    sent.release()
    return len(json.loads(connection.getresponse().read())["data"])


@pytest.mark.server
@pytest.mark.enable_socket
def test_a_signal_stops_the_server_after_its_last_answer(
    tiny_folder: Path, sentences: list[str], tmp_path: Path
) -> None:
    port = free_port()
    environment = os.environ | {
        "PYTHONPATH": str(Path(leap.__file__).absolute().parents[1]),
        "LEAP_MONITOR_FOLDER": str(tmp_path / "windows"),
    }
    serve = "import sys; from leap.cli import run; sys.argv[0] = 'leap'; run()"
    command = [sys.executable, "-c", serve, "serve", str(tiny_folder), "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.1)
        answered: list[int] = []
        sent = threading.Semaphore(0)
        clients = [
            threading.Thread(target=lambda: answered.append(post(port, sentences * 10, sent))) for _ in range(6)
        ]
        for client in clients:
            client.start()
        for _ in clients:
            sent.acquire()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert answered == [600] * 6
        assert read_windows(str(tmp_path / "windows")).sentences == 3600
    finally:
        process.kill()
