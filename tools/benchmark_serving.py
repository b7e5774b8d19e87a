"""Requests a second and latencies of `leap serve`: exits, full depth, and a plain sentence-transformers server.

    python tools/benchmark_serving.py --model models/leap-1

The servers run on loopback ports of this machine and are measured in alternating rounds, so that other load meets
them alike; the one that is not asked is idle. Clients are threads that each send one query after the other. The
last line is compact JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from leap.core.columns import columns
from leap.doctor.doctor_sentences import sample

# A server as users write one: sentence-transformers behind FastAPI, a request at a time in a thread.
PLAIN = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True)
app = FastAPI()

class Body(BaseModel):
    input: list[str]

@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}

@app.post("/v1/embeddings")
def embeddings(body: Body) -> dict[str, object]:
    vectors = model.encode(body.input, show_progress_bar=False)
    return {"data": [{"embedding": vector.tolist()} for vector in vectors]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


def main() -> None:
    """Start the servers, measure in rounds, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--clients", type=int, default=8, help="that send at once")
    parser.add_argument("--requests", type=int, default=400, help="of each way in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, help="also measure this budget of layers")
    parser.add_argument("--port", type=int, default=8471, help="the first of two")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of every server")
    arguments = parser.parse_args()

    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "exits": (arguments.port, {}),
        "full depth": (arguments.port, {"strategy": "full"}),
        "sentence-transformers": (arguments.port + 1, {}),
    }
    if arguments.layers is not None:
        ways[f"{arguments.layers} layers"] = (arguments.port, {"layers": arguments.layers})
    texts = sample(None, None).sentences
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with servers(arguments.model, arguments.port, arguments.threads):
        for port, options in ways.values():
            measure(port, options, texts[:64], 1)  # warm
        for _ in range(arguments.rounds):
            for way, (port, options) in ways.items():
                chosen = [texts[number % len(texts)] for number in range(arguments.requests)]
                started = time.perf_counter()
                seconds[way] += measure(port, options, chosen, arguments.clients)
                rates[way].append(len(chosen) / (time.perf_counter() - started))
    found = {way: figures(seconds[way], rates[way]) for way in ways}
    head = ("way", "requests/s", "p50 ms", "p95 ms", "p99 ms")
    shown = [head, *((way, *(f"{value:.1f}" for value in row.values())) for way, row in found.items())]
    sys.stdout.write(columns(shown) + "\n")
    protocol = {name: getattr(arguments, name) for name in ("clients", "requests", "rounds", "threads")}
    summary = {"model": Path(arguments.model).name, **protocol, "figures": found}
    sys.stdout.write(json.dumps(summary, separators=(",", ":")) + "\n")


def figures(seconds: list[float], rates: list[float]) -> dict[str, float]:
    """The median rate of the rounds, and percentiles of all requests in milliseconds."""
    points = statistics.quantiles(seconds, n=100, method="inclusive")
    ms = {f"p{point}_ms": round(1000 * points[point - 1], 2) for point in (50, 95, 99)}
    return {"requests_per_second": round(statistics.median(rates), 1), **ms}


def measure(port: int, options: dict[str, Any], texts: list[str], clients: int) -> list[float]:
    """Send every text as a request of its own; the seconds from each request to its answer."""
    seconds: list[list[float]] = [[] for _ in range(clients)]

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        for text in texts[number::clients]:
            body = json.dumps({"input": [text], **options})
            started = time.perf_counter()
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {content.decode()}")
            seconds[number].append(time.perf_counter() - started)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [value for each in seconds for value in each]
    if len(found) != len(texts):
        raise RuntimeError(f"{len(texts) - len(found)} of {len(texts)} requests had no answer")
    return found


@contextmanager
def servers(model: str, port: int, threads: int) -> Iterator[None]:
    """`leap serve` on `port` and the plain server on the next, both answering."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    commands = [
        [*(sys.executable, "-c", "from leap.cli import run; run()", "serve", model), "--port", str(port)],
        [sys.executable, "-c", PLAIN, model, str(port + 1)],
    ]
    running = [subprocess.Popen(command, env=environment) for command in commands]  # nosec B603
    try:
        for offset, process in enumerate(running):
            wait_for(process, port + offset)
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):  # nosec B310
                return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"the server on port {port} ended with {process.returncode}") from None
            time.sleep(0.2)
    raise RuntimeError(f"the server on port {port} does not answer")


if __name__ == "__main__":
    main()
