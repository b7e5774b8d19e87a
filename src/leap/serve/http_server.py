"""`leap serve`: a model over HTTP in the form of OpenAI's embeddings endpoint.

    leap serve models/leap-1 --port 8000
    curl localhost:8000/v1/embeddings -H 'Content-Type: application/json' \\
      -d '{"input": ["How do I sort a list?"], "input_type": "query"}'

What the caller gets wrong is answered with 400 and one message, in OpenAI's form of an error.
"""

import base64
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from leap.core.errors import UserError
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.leaving import InputType, Strategy
from leap.serve.batcher import Batcher, Overloaded
from leap.serve.limits import MAX_REQUEST_CHARACTERS, RequestRefused, check_limits, check_texts, read_limit

log = logging.getLogger(__name__)

# Bytes of a body for each character that a request may have: JSON writes up to six a character, \uXXXX.
BYTES_A_CHARACTER = 6


class EmbeddingRequest(BaseModel):
    """The body of a request; the fields of OpenAI's, and from `input_type` on ours."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    input_type: InputType | None = None
    # A budget: a text that has not left by this layer leaves here; the rule or a strategy says who leaves before.
    layers: Annotated[int, Field(ge=1)] | None = None
    strategy: Strategy | None = None
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None

    def texts(self) -> list[str]:
        """Return the texts; RequestRefused where they are not within the limits, or are tokens."""
        given = [self.input] if isinstance(self.input, str) else self.input
        if not given:
            raise RequestRefused("input is an empty list: give at least one text")
        if any(isinstance(each, int | list) for each in given):
            raise RequestRefused(
                "input must be text, not token ids, for they are another model's (LangChain: "
                "check_embedding_ctx_length=False)"
            )
        return check_texts(given)

    def options(self) -> dict[str, Any]:
        """Return `encode`'s arguments; RequestRefused for strategy fixed, whose layer is no field here."""
        if self.strategy == "fixed":
            raise RequestRefused('strategy fixed is not served: for layer 3 give "strategy": "full", "layers": 3')
        options: dict[str, Any] = {
            "input_type": self.input_type,
            "strategy": self.strategy,
            "threshold": self.threshold,
            "truncate_dim": self.dimensions,
            "max_layer": self.layers,
        }
        return {name: value for name, value in options.items() if value is not None}


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("leap_requests", "Requests answered.", ["status"], registry=self.registry)
        self.texts = Counter("leap_texts", "Texts encoded.", ["input_type"], registry=self.registry)
        self.exits = Counter("leap_exits", "Texts that left at this layer.", ["layer"], registry=self.registry)
        self.queued = Gauge("leap_queued_texts", "Texts that wait.", registry=self.registry)
        buckets = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
        self.seconds = Histogram(
            "leap_request_seconds", "From a request to its answer.", buckets=buckets, registry=self.registry
        )
        self.batches = Histogram(
            "leap_batch_texts",
            "Texts encoded together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )


def http_app(encoder: LeapEncoder, name: str, *, max_batch: int = 64, max_queue: int = 4096) -> FastAPI:
    """Build the server of one model.

    Args:
        encoder: the model; its monitor counts what it encodes.
        name: what the model is called in answers; a request may name it or none.
        max_batch: texts encoded together.
        max_queue: texts that may wait; beyond them requests are answered with 503.

    Raises:
        UserError: a limit in the environment is no number.
    """
    check_limits()
    metrics = Metrics()

    def encode(texts: list[str], **options: Any) -> tuple[Any, Any]:
        vectors, layers = encoder.encode(
            texts, batch_size=max_batch, show_progress_bar=False, return_exit_layers=True, **options
        )
        # Counted here, for the event loop has other requests to answer.
        return vectors, np.stack([layers, [len(ids) for ids in encoder.tokenizer(texts)]], axis=1)

    batcher = Batcher(encode, max_batch=max_batch, max_queue=max_queue, on_batch=metrics.batches.observe)
    metrics.queued.set_function(lambda: batcher.queued)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        log.info("%s: %d layers, %d dimensions, ready", name, encoder.depth, encoder.get_embedding_dimension())
        yield
        # uvicorn waits for the open requests first.
        await batcher.close()
        encoder.monitor = None  # writes its window
        log.info("%s: every request answered, stopped", name)

    app = FastAPI(title="LEAP", lifespan=lifespan)
    app.state.batcher = batcher

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingRequest) -> JSONResponse:
        if body.model not in (None, name):
            raise HTTPException(404, f"model {body.model!r} is not served here, only {name!r}")
        texts = body.texts()
        vectors, facts = await batcher.encode(texts, body.options())
        layers, tokens = facts.T
        metrics.texts.labels(body.input_type or "none").inc(len(texts))
        for layer, count in zip(*np.unique(layers, return_counts=True), strict=True):
            metrics.exits.labels(int(layer)).inc(int(count))
        return JSONResponse(answer(body, name, vectors, layers, int(tokens.sum())))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "leap"}]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "model": name,
            "layers": encoder.depth,
            "dimensions": encoder.get_embedding_dimension(),
        }

    @app.get("/metrics")
    async def metrics_text() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    add_error_answers(app, encoder.folder)

    @app.middleware("http")
    async def measure(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        started = time.perf_counter()
        response = await call_next(request)
        if request.url.path == "/v1/embeddings":
            metrics.requests.labels(response.status_code).inc()
            metrics.seconds.observe(time.perf_counter() - started)
        return response

    app.add_middleware(BodyLimit, most=BYTES_A_CHARACTER * read_limit(MAX_REQUEST_CHARACTERS))
    return app


def answer(body: EmbeddingRequest, name: str, vectors: Any, layers: Any, count: int) -> dict[str, Any]:
    def shown(vector: np.ndarray[Any, Any]) -> list[float] | str:
        plain = np.ascontiguousarray(vector, dtype="<f4")
        return base64.b64encode(plain.tobytes()).decode() if body.encoding_format == "base64" else plain.tolist()

    data = [
        {"object": "embedding", "index": index, "embedding": shown(vector), "exit_layer": int(layer)}
        for index, (vector, layer) in enumerate(zip(vectors, layers, strict=True))
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def add_error_answers(app: FastAPI, folder: Path) -> None:
    """Answer every mistake in OpenAI's form of an error; where the model lies is none of the caller's business."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return failure(400, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(RequestRefused)
    @app.exception_handler(ValueError)
    @app.exception_handler(UserError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return failure(400, str(error).replace(f"{folder}/", ""))

    @app.exception_handler(Overloaded)
    async def overloaded(request: Request, error: Exception) -> JSONResponse:
        return failure(503, f"{error}: try again", {"Retry-After": "1"})

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return failure(error.status_code, str(error.detail))


def failure(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    content = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return JSONResponse(content, status, headers)


class BodyLimit:
    """Refuses a body that is too large while it arrives, before it is parsed."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        named = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(named) if named.isdigit() else 0
        parts: list[bytes] = []
        more = scope["method"] == "POST" and size <= self.most
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            size = sum(map(len, parts))
            more = message.get("more_body", False) and size <= self.most
        if size > self.most:
            refusal = failure(413, f"the body has more than {self.most} bytes")
            await refusal(scope, receive, send)
            return
        sent = False

        async def replay() -> Any:
            nonlocal sent
            if sent or scope["method"] != "POST":
                return await receive()
            sent = True
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}

        await self.app(scope, replay, send)


def serve(encoder: LeapEncoder, name: str, *, host: str, port: int, max_batch: int, max_queue: int) -> None:
    """Serve until a signal comes; open requests are answered first."""
    import uvicorn

    app = http_app(encoder, name, max_batch=max_batch, max_queue=max_queue)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)
