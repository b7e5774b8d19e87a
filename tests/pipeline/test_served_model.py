"""The champion behind `mlflow models serve`, called over HTTP.

Once in the environment of the tests. With LEAP_SLOW=1 also in a fresh one that has only what the registered
model asks for: minutes of pip.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_evidence import made_settings
from made_store import fresh_store, logged, verdict_on
from tiny_models import write_folder

from leap.exits import LeapEncoder
from leap.registry.versions import promote
from leap.tracking import Tracking

pytestmark = [pytest.mark.server, pytest.mark.enable_socket]

TEXTS = ["be do", "do bo di", "fa"]


class Service:
    """A running `mlflow models serve` and the model behind it."""

    def __init__(self, port: int, encoder: LeapEncoder) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.encoder = encoder

    def post(self, body: Any, expect: int = 200, kind: str = "application/json") -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/invocations", data, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        assert status == expect, text
        return json.loads(text) if status == 200 else text.decode()

    def vectors(self, **params: Any) -> np.ndarray[Any, Any]:
        answer = self.post({"inputs": {"sentence": TEXTS}, "params": params})
        return np.asarray(answer["predictions"], dtype=np.float32)


@pytest.fixture(scope="module", params=["here", "fresh"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    if request.param == "fresh" and os.environ.get("LEAP_SLOW") != "1":
        pytest.skip("LEAP_SLOW=1 makes a fresh environment: minutes of pip")
    project = tmp_path_factory.mktemp("served") / "project"
    shutil.copytree(fresh_store(), project)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        register(project)
        (model,) = Path("mlruns/artifacts/models").glob("*/artifacts")
        python = sys.executable if request.param == "here" else fresh_python(project / "venv", model)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [python, "-m", "mlflow", "models", "serve", "-m", "models:/leap-docstrings@champion"]
        command += ["--port", str(port), "--env-manager", "local", "--workers", "1"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"MLFLOW_TRACKING_URI": f"sqlite:///{project}/mlruns/mlflow.db"}
        environment |= {"LEAP_MAX_SENTENCES": "8", "LEAP_MAX_CHARACTERS": "100"}
        environment |= {"LEAP_MAX_REQUEST_CHARACTERS": "500"}
        environment |= {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
        with (project / "serve.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            wait_for(port, process, project / "serve.log")
            yield Service(port, LeapEncoder(project / "models" / "leap-1", "cpu"))
        finally:
            os.killpg(process.pid, 15)
            process.wait(timeout=20)


def register(project: Path) -> None:
    write_folder(project / "models" / "leap-1", layers=5, normalize=True)
    tracking = Tracking.open(made_settings(), required=True)
    promote(tracking, verdict_on("leap"), logged(tracking, "leap", card="# card\n"), {"pairs": "hash"})


def fresh_python(folder: Path, model: Path) -> str:
    """The interpreter of a new environment with the model's own requirements and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", model / "requirements.txt"]
    subprocess.run(pip, check=True)
    return str(folder / "bin" / "python")


def wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_vectors(service: Service) -> None:
    np.testing.assert_allclose(service.vectors(), service.encoder.encode(TEXTS), atol=1e-6)
    rows = service.post({"dataframe_split": {"columns": ["sentence"], "data": [[text] for text in TEXTS]}})
    np.testing.assert_allclose(rows["predictions"], service.encoder.encode(TEXTS), atol=1e-6)


def test_exit_layers_on_request(service: Service) -> None:
    for threshold in (-1.0, 1.0):
        params = {"return_exit_layers": True, "threshold": threshold, "min_layer": 2}
        answer = service.post({"inputs": {"sentence": TEXTS}, "params": params})["predictions"]
        vectors, layers = service.encoder.encode(TEXTS, threshold=threshold, min_layer=2, return_exit_layers=True)
        assert [row["exit_layer"] for row in answer] == layers.tolist()
        assert set(layers) == ({2} if threshold < 0 else {5})
        np.testing.assert_allclose([row["vector"] for row in answer], vectors, atol=1e-6)


def test_strategy_of_a_request(service: Service) -> None:
    full = service.encoder.encode(TEXTS, strategy="full")
    np.testing.assert_allclose(service.vectors(strategy="full"), full, atol=1e-6)
    third = service.encoder.encode(TEXTS, strategy="fixed", layer=3)
    np.testing.assert_allclose(service.vectors(strategy="fixed", layer=3), third, atol=1e-6)
    assert np.abs(full - third).max() > 1e-3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "JSON"),
        (b"[]", ""),
        ({"inputs": {"text": ["a"]}}, "sentence"),
        ({"inputs": {"sentence": [["a"]]}}, "sentence"),
        ({"dataframe_split": {"columns": ["sentence"], "data": [["a"], [None]]}}, "sentence 2 is no text"),
        ({"inputs": {"sentence": ["\ud800"]}}, "surrogates not allowed"),
        ({"inputs": {"sentence": ["a"] * 9}}, "9 sentences in one request: at most 8 are taken"),
        ({"inputs": {"sentence": ["a" * 101]}}, "sentence 1 has 101 characters: at most 100 are taken"),
        ({"inputs": {"sentence": ["a" * 99] * 6}}, "594 characters in one request: at most 500 are taken"),
        (b"", "JSON"),
        (b"null", "JSON dictionary"),
        ('{"inputs": {"sentence": ["f\u00fcr"]}}'.encode("latin-1"), "JSON"),
        ({"inputs": 3}, "schema"),
        ({"inputs": None}, "schema"),
        ({"inputs": {"sentence": ["a"]}, "instances": ["a"]}, "exactly one of the input fields"),
        ({"messages": [{"role": "user", "content": "a"}]}, "schema"),
        ({"dataframe_split": "a"}, "must be a dictionary"),
        ({"dataframe_split": {"columns": ["sentence"], "data": [["a", "b"]]}}, "1 columns passed"),
        ({"dataframe_records": [{"sentence": 3}]}, "sentence 1 is no text"),
        ({"dataframe_records": [{"sentence": {"a": 1}}]}, "sentence 1 is no text"),
        ({"inputs": {"sentence": ["a"]}, "params": [1]}, "must be a dictionary"),
        ({"inputs": {"sentence": ["a"]}, "params": {"threshold": [0.9]}}, "threshold"),
        ({"inputs": {"sentence": ["a"]}, "params": {"min_layer": 2.5}}, "min_layer"),
        ({"inputs": {"sentence": ["a"]}, "params": {"min_layer": 10**30}}, "1 to 5"),
        ({"inputs": {"sentence": ["a"]}, "params": {"return_exit_layers": "yes"}}, "return_exit_layers"),
        (b'{"inputs": {"sentence": ["a"]}, "params": {"threshold": NaN}}', "threshold nan"),
        (
            {"inputs": {"sentence": ["a"]}, "params": {"strategy": "predictors"}},
            "Error: predictors.safetensors is",
        ),
        (
            {"inputs": {"sentence": ["a"]}, "params": {"strategy": "guess"}},
            "strategy 'guess' is none of converged",
        ),
        ({"inputs": {"sentence": ["a"]}, "params": {"strategy": "fixed"}}, "layer goes with"),
        ({"inputs": {"sentence": ["a"]}, "params": {"strategy": "fixed", "layer": 9}}, "1 to 5"),
        ({"inputs": {"sentence": ["a"]}, "params": {"threshold": 2.0}}, "not a cosine"),
        ({"inputs": {"sentence": ["a"]}, "params": {"threshold": "high"}}, "threshold"),
        ({"inputs": {"sentence": ["a"]}, "params": {"min_layer": 0}}, "min_layer 0"),
    ],
)
def test_malformed_requests_are_the_callers_fault(service: Service, body: Any, message: str) -> None:
    answer = service.post(body, expect=400)
    assert message in answer
    assert "Traceback" not in answer


def test_an_unknown_content_type(service: Service) -> None:
    service.post(b"sentence", expect=415, kind="text/plain")


@pytest.mark.parametrize(
    "body", [b'{"inputs":' + b"[" * 100_000, b'{"inputs": {"sentence": [' + b"9" * 5_000 + b"]}}"]
)
def test_what_mlflows_own_parser_does_not_survive_shows_nothing(service: Service, body: bytes) -> None:
    """Nested too deeply, a number too long: MLflow itself answers 500, and no more (docs/serving.md)."""
    assert service.post(body, expect=500) == "Internal Server Error"


def test_a_large_body(service: Service) -> None:
    """Within the limits of Python's memory anything is read; our own limit is what answers."""
    body = {"inputs": {"sentence": ["a" * 5_000_000]}}
    assert "5000000 characters: at most 100 are taken" in service.post(body, expect=400)


def test_it_still_answers_after_all_that(service: Service) -> None:
    assert service.vectors().shape == (3, 16)
