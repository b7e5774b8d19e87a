"""`leap serve` in OpenAI's form: vectors, exits, limits, refusals, metrics; many requests at once, none lost."""

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leap.exits import LeapEncoder
from leap.serve import Monitor
from leap.serve.batcher import Batcher, Overloaded
from leap.serve.http_server import http_app
from leap.serve.window import read_windows

# The client that the lock brings: httpx, or httpx2 where newer libraries depend on its successor.
httpx = pytest.importorskip("httpx2" if find_spec("httpx2") else "httpx")

EXITS = {"threshold": 0.885}


def talk(encoder: LeapEncoder, conversation: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Hold a conversation with a server in this process, and stop it."""

    async def run() -> Any:
        app = http_app(encoder, "tiny", **options)
        async with app.router.lifespan_context(app):
            # What the server does not expect is its answer 500, not an exception here.
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://leap", timeout=60) as client:
                return await conversation(client)

    return asyncio.run(run())


async def post(client: httpx.AsyncClient, body: Any) -> httpx.Response:
    if isinstance(body, bytes):
        return await client.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    return await client.post("/v1/embeddings", json=body)


def ask(encoder: LeapEncoder, body: Any, **options: Any) -> httpx.Response:
    async def conversation(client: httpx.AsyncClient) -> httpx.Response:
        return await post(client, body)

    results: httpx.Response = talk(encoder, conversation, **options)
    return results


@pytest.fixture
def encoder(tiny_folder: Path) -> LeapEncoder:
    return LeapEncoder(tiny_folder, "cpu", prompts={"query": "ba be ", "document": "du "})


def test_the_answer_has_openais_form_and_the_encoders_vectors(encoder: LeapEncoder, sentences: list[str]) -> None:
    answer = ask(encoder, {"input": sentences[:9], "model": "tiny"})
    assert answer.status_code == 200
    content = answer.json()
    expected, layers = encoder.encode(sentences[:9], return_exit_layers=True)
    assert [each["index"] for each in content["data"]] == list(range(9))
    assert {each["object"] for each in content["data"]} == {"embedding"}
    np.testing.assert_allclose([each["embedding"] for each in content["data"]], expected, atol=1e-6)
    assert [each["exit_layer"] for each in content["data"]] == layers.tolist()
    tokens = sum(map(len, encoder.tokenizer(sentences[:9])))
    assert content["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (content["object"], content["model"]) == ("list", "tiny")


def test_one_text_in_base64_as_openais_client_asks_for_it(encoder: LeapEncoder) -> None:
    answer = ask(encoder, {"input": "bi bo", "encoding_format": "base64", "dimensions": 4}).json()
    result = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(result, encoder.encode("bi bo", truncate_dim=4), atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"input_type": "query"}, {"input_type": "query"}),
        ({"input_type": "document"}, {"input_type": "document"}),
        ({"layers": 2}, {"max_layer": 2}),
        ({"layers": 3, "strategy": "full"}, {"strategy": "fixed", "layer": 3}),
        ({"layers": 4, "threshold": 0.999}, {"threshold": 0.999, "max_layer": 4}),
        ({"strategy": "full"}, {"strategy": "full"}),
        (EXITS, EXITS),
    ],
)
def test_what_a_request_may_choose(
    encoder: LeapEncoder, sentences: list[str], asked: dict[str, Any], options: dict[str, Any]
) -> None:
    content = ask(encoder, {"input": sentences[:5], **asked}).json()["data"]
    expected, layers = encoder.encode(sentences[:5], return_exit_layers=True, **options)
    np.testing.assert_allclose([each["embedding"] for each in content], expected, atol=1e-6)
    assert [each["exit_layer"] for each in content] == layers.tolist()


MALFORMED: list[tuple[Any, int, str]] = [
    (b"{", 400, "JSON"),
    (b"[1]", 400, ""),
    ({"input": []}, 400, "input is an empty list: give at least one text"),
    ({"input": [1, 2]}, 400, "not token ids"),
    ({"input": [[1, 2]]}, 400, "not token ids"),
    ({"input": ["bi", None]}, 400, "sentence 2 is no text"),
    ({"input": {"text": "bi"}}, 400, "input"),
    ({}, 400, "input"),
    ({"input": "bi", "inputType": "query"}, 400, "inputType"),
    ({"input": "bi", "input_type": "passage"}, 400, "input_type"),
    ({"input": "bi", "layers": 9}, 400, "a budget of 9 layers: this model has 1 to 5"),
    ({"input": "bi", "layers": 2, "strategy": "near_final"}, 400, "leave out max_layer"),
    ({"input": "bi", "strategy": "fixed"}, 400, 'give "strategy": "full", "layers": 3'),
    ({"input": "bi", "strategy": "predictors"}, 400, "predictors"),
    ({"input": "bi", "model": "gpt"}, 404, "only 'tiny'"),
    ({"input": "b" * 101}, 400, "101 characters"),
    ({"input": ["bi"] * 9}, 400, "9 sentences"),
    (b'{"input": "' + b"b" * 5000 + b'"}', 413, "bytes"),
]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAP_MAX_SENTENCES", "8")
    monkeypatch.setenv("LEAP_MAX_CHARACTERS", "100")
    monkeypatch.setenv("LEAP_MAX_REQUEST_CHARACTERS", "500")


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("body", "status", "said"), MALFORMED)
def test_a_mistake_is_one_message(encoder: LeapEncoder, body: Any, status: int, said: str) -> None:
    answer = ask(encoder, body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert str(encoder.folder) not in answer.text


@pytest.mark.usefixtures("limits")
def test_of_some_hundred_requests_none_is_lost(encoder: LeapEncoder, sentences: list[str], tmp_path: Path) -> None:
    encoder.monitor = Monitor(encoder, tmp_path / "windows")
    generator = random.Random(1)
    wanted: list[tuple[Any, int]] = []
    for _ in range(300):
        texts = [text for text in generator.choices(sentences, k=generator.randint(1, 4)) if len(text) <= 100]
        kind = generator.choice([{}, {"input_type": "query"}, {"layers": 2}])
        wanted.append(({"input": texts or "bi", **kind}, 200))
        if generator.random() < 0.4:
            wanted.append(generator.choice(MALFORMED)[:2])
    expected = {
        key: dict(zip(sentences, encoder.encode(sentences, **options), strict=True))
        for key, options in (
            ("none", {}),
            ("query", {"input_type": "query"}),
            ("2", {"max_layer": 2}),
        )
    }
    counted = read_or_none(encoder)

    async def conversation(client: httpx.AsyncClient) -> tuple[list[httpx.Response], str]:
        answers = await asyncio.gather(*(post(client, body) for body, _ in wanted))
        return answers, (await client.get("/metrics")).text

    answers, metrics = talk(encoder, conversation, max_batch=16)
    assert [answer.status_code for answer in answers] == [status for _, status in wanted]
    texts = 0
    for (body, status), answer in zip(wanted, answers, strict=True):
        if status == 200 and isinstance(body["input"], list):
            key = body.get("input_type", str(body.get("layers", "none")))
            results = [each["embedding"] for each in answer.json()["data"]]
            np.testing.assert_allclose(results, [expected[key][text] for text in body["input"]], atol=1e-5)
        texts += len(body["input"]) if status == 200 and isinstance(body["input"], list) else int(status == 200)
    shown = samples(metrics)
    statuses = Counter(str(status) for _, status in wanted if status != 413)
    assert {key: shown[f'leap_requests_total{{status="{key}"}}'] for key in statuses} == statuses
    assert sum(value for key, value in shown.items() if key.startswith("leap_exits_total")) == texts
    assert shown["leap_batch_texts_sum"] >= texts  # what failed was in a batch too
    assert shown["leap_batch_texts_count"] < 300
    assert shown["leap_queued_texts"] == 0
    # The monitor's window is written when the server stops.
    window = read_windows(str(tmp_path / "windows"))
    assert window.sentences + window.bypassed - counted == texts


def read_or_none(encoder: LeapEncoder) -> int:
    window = encoder.monitor.window()  # type: ignore[union-attr]
    return window.sentences + window.bypassed


def samples(metrics: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_health_and_models(encoder: LeapEncoder) -> None:
    async def conversation(client: httpx.AsyncClient) -> list[Any]:
        return [(await client.get(path)).json() for path in ("/health", "/v1/models", "/nothing")]

    health, models, nothing = talk(encoder, conversation)
    assert health == {"status": "ok", "model": "tiny", "layers": 5, "dimensions": 16}
    assert models["data"][0]["id"] == "tiny"
    assert nothing["error"]["message"] == "Not Found"


def test_more_than_may_wait_is_refused_and_asked_to_come_back(encoder: LeapEncoder) -> None:
    async def conversation(client: httpx.AsyncClient) -> list[httpx.Response]:
        sent = [client.post("/v1/embeddings", json={"input": ["bi"] * 8}) for _ in range(40)]
        return await asyncio.gather(*sent)

    answers = talk(encoder, conversation, max_batch=8, max_queue=16)
    result = Counter(answer.status_code for answer in answers)
    assert set(result) == {200, 503}
    assert {answer.headers["Retry-After"] for answer in answers if answer.status_code == 503} == {"1"}


def zeros(texts: list[str], **options: Any) -> tuple[Any, Any]:
    if "fail" in texts:
        raise ValueError("failed")
    return np.zeros((len(texts), 2), np.float32), np.arange(len(texts))


def test_a_batch_that_fails_fails_for_its_cause_alone() -> None:
    async def run() -> list[Any]:
        batcher = Batcher(zeros, max_batch=10, max_queue=100)
        return await asyncio.gather(
            *(batcher.encode([text], {}) for text in ("a", "b", "fail", "c")), return_exceptions=True
        )

    result = asyncio.run(run())
    assert [type(each) for each in result] == [tuple, tuple, ValueError, tuple]


def test_a_stopping_server_answers_what_waits_and_takes_no_more() -> None:
    async def run() -> tuple[list[Any], Any]:
        batcher = Batcher(zeros, max_batch=2, max_queue=100)
        waiting = [asyncio.create_task(batcher.encode(["a"], {"layer": number % 3})) for number in range(20)]
        await asyncio.sleep(0)
        await batcher.close()
        late = await asyncio.gather(batcher.encode(["b"], {}), return_exceptions=True)
        return await asyncio.gather(*waiting), late[0]

    answered, late = asyncio.run(run())
    assert len(answered) == 20
    assert isinstance(late, Overloaded)
