"""Requests a second and latencies of `leap serve`: exits, full depth, and a plain sentence-transformers server.

    python tools/benchmark_serving.py --model models/leap-1
    python tools/benchmark_serving.py --model models/leap-1 --load 10000

With `--load N` it sends N requests to `leap serve` alone, one in five of them malformed, and fails where an
answer is lost or has another status than it should, or where the counts of `/metrics` differ; it reports the
server's memory before and after. Otherwise the servers run on loopback ports of this machine and are measured in
alternating rounds, so that other load meets them alike; the one that is not asked is idle. Clients are threads
that each send one query after the other. The last line is compact JSON.
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

from leap.core.grid import Grid
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
    parser.add_argument("--load", type=int, help="send so many requests instead, some of them malformed")
    arguments = parser.parse_args()
    if arguments.load is not None:
        load(arguments.model, arguments.port, arguments.threads, arguments.load, arguments.clients)
        return

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
    with servers(commands(arguments.model, arguments.port), arguments.threads):
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
    shown = [(way, *(f"{value:.1f}" for value in row.values())) for way, row in found.items()]
    sys.stdout.write(Grid(head, shown).text() + "\n")
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


def load(model: str, port: int, threads: int, count: int, clients: int) -> None:
    """Send `count` requests from `clients` at once, check every answer, and print one JSON line."""
    texts = sample(None, None).sentences
    asked = [request(number, texts) for number in range(count)]
    with servers({port: commands(model, port)[port]}, threads) as (process,):
        send(port, asked[:200], clients)  # warm
        before = resident_mb(process.pid)
        started = time.perf_counter()
        answers = send(port, asked, clients)
        seconds = time.perf_counter() - started
        after = resident_mb(process.pid)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:  # nosec B310
            lines = reply.read().decode().splitlines()
    wrong = [
        f"{body[:80]!r}: {found}" for (body, wanted), found in zip(asked, answers, strict=True) if found != wanted
    ]
    counted = sum(float(line.split()[-1]) for line in lines if line.startswith("leap_requests_total{"))
    if wrong or counted != count + 200:
        raise RuntimeError(f"{len(wrong)} wrong answers ({wrong[:3]}); /metrics counts {counted:.0f} requests")
    shown = {str(status): answers.count(status) for status in sorted(set(answers))}
    result = {
        "requests": count,
        "clients": clients,
        "answers": shown,
        "requests_per_second": round(count / seconds, 1),
    }
    sys.stdout.write(json.dumps({**result, "resident_mb": {"before": before, "after": after}}) + "\n")


def request(number: int, texts: list[str]) -> tuple[bytes, int]:
    """Make a body and the status of its answer; every fifth is malformed in one of six ways."""
    chosen = [texts[(number + place) % len(texts)] for place in range(1 + number % 4)]
    if number % 5 == 0:
        malformed: list[Any] = [
            {"input": [1, 2]},
            {"input": []},
            {"input": chosen, "surprising": 1},
            {"input": chosen, "layers": 99},
            {"input": [chosen[0], None]},
        ]
        kind = number // 5 % (len(malformed) + 1)
        return (b'{"input": ["cut', 400) if kind == len(malformed) else (json.dumps(malformed[kind]).encode(), 400)
    options: list[dict[str, Any]] = [{}, {"input_type": "query"}, {"layers": 2}, {"strategy": "full"}]
    return json.dumps({"input": chosen, **options[number // 5 % len(options)]}).encode(), 200


def send(port: int, asked: list[tuple[bytes, int]], clients: int) -> list[int]:
    """Send every body; the status of each answer, in order, 0 where there was none."""
    statuses = [0] * len(asked)

    def client(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=300)
        for number in range(first, len(asked), clients):
            connection.request("POST", "/v1/embeddings", asked[number][0], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses[number] = answer.status

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def resident_mb(process: int) -> float:
    """A process's resident memory, on Linux."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


def commands(model: str, port: int) -> dict[int, list[str]]:
    """By port: `leap serve`, and the plain server on the next."""
    return {
        port: [*(sys.executable, "-c", "from leap.cli import run; run()", "serve", model), "--port", str(port)],
        port + 1: [sys.executable, "-c", PLAIN, model, str(port + 1)],
    }


@contextmanager
def servers(commands: dict[int, list[str]], threads: int) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """The servers by port, all answering."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    running = [subprocess.Popen(command, env=environment) for command in commands.values()]  # nosec B603
    try:
        for port, process in zip(commands, running, strict=True):
            wait_for(process, port)
        yield running
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
