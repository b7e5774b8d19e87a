"""Which way a batch is computed, what the log says of it, and that a path that fails is not used again."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.exits import ExitRule, LeapEncoder
from leap.exits import paths as module
from leap.exits.cuda.fused import FusedEncoder, unsupported
from leap.exits.cuda.graphs import GraphEncoder
from leap.exits.paths import FastPath, GraphPath, Paths
from leap.exits.plan import Plan
from leap.exits.policy import Fixed, Patient
from leap.exits.trust import LENGTHS
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder, EncoderConfig


def encoder(width: int = 128, heads: int = 4, dtype: torch.dtype = torch.float16) -> Encoder:
    return Encoder(EncoderConfig(2, width, heads, 2 * width, vocabulary=10, positions=16)).to(dtype)


class MadePath:
    """A path that counts, for rows of up to three tokens, and fails when told to."""

    name = "graphs"

    def __init__(self, encoder: Encoder, error: Exception | None = None) -> None:
        self.error = error
        self.ran: list[int] = []
        self.learnt: list[int] = []
        self.warmed: list[tuple[int, int]] = []
        self.inner = GraphEncoder(encoder)

    def takes(self, batch: Batch) -> bool:
        return batch.groups[-1].length <= 3

    def run(self, batch: Batch, plan: Plan, heads: ExitHeads | None) -> tuple[Tensor, Tensor]:
        self.ran.append(batch.rows)
        if self.error:
            raise self.error
        vectors, exits = self.inner.run(batch, plan)
        return vectors if heads is None else heads.at_exits(vectors, exits), exits

    def learn(self, plan: Plan, exits: Sequence[int]) -> None:
        self.learnt += exits

    def warm(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None) -> None:
        self.warmed.append((rows, length))


@pytest.fixture
def made(tiny_model: LeapEncoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadePath]:
    """The tiny model's only fast path."""
    path = MadePath(tiny_model.encoder)

    def found(*_: object) -> tuple[tuple[FastPath, ...], dict[str, str]]:
        return (path,), {}

    monkeypatch.setattr(module, "_fast_paths", found)
    tiny_model._paths = None
    yield path
    tiny_model._paths = None


def test_a_cpu_model_runs_layer_by_layer_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="leap.exits.paths"):
        assert Paths(encoder()).fast == ()
    assert caplog.messages == ["exit path: cpu eager (fused: the model is on cpu; graphs: the model is on cpu)"]


@pytest.mark.parametrize("path", ["fused", "graphs"])
def test_a_path_that_is_asked_for_must_work(tiny_folder: Path, path: str) -> None:
    model = LeapEncoder(tiny_folder, "cpu", path=path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f'path="{path}" does not work here: the model is on cpu'):
        model.encode("ba")


def test_names_of_paths(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match="path 'fast' is none of auto, fused, graphs, eager"):
        LeapEncoder(tiny_folder, "cpu", path="fast")  # type: ignore[arg-type]
    assert LeapEncoder(tiny_folder, "cpu", path="eager").encode("ba").shape == (16,)


def test_paths_are_found_once_until_the_weights_change(tiny_folder: Path) -> None:
    model = LeapEncoder(tiny_folder, "cpu")
    first = model.paths
    assert model.paths is first
    model.encoder.words.weight.data = model.encoder.words.weight.data.clone()
    second = model.paths
    assert second is not first
    assert model.half().paths is not second
    assert model.encoder.layers[0].qkv.weight.dtype == torch.float16
    assert model.bfloat16().encode("ba").dtype == np.float32
    assert LeapEncoder(tiny_folder, "cpu", model_kwargs={"dtype": "float16"}).paths.encoder.words.weight.dtype == (
        torch.float16
    )


def test_half_of_an_int8_model(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match="keeps its precision"):
        LeapEncoder(tiny_folder, "cpu", quantize="int8").half()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (encoder(), None),
        (encoder(dtype=torch.bfloat16), None),
        (encoder(dtype=torch.float32), "float32"),
        (encoder(width=128, heads=8), "heads of 16"),
        (encoder(width=192, heads=6), "widths 192 and 384"),
        (Encoder(EncoderConfig(2, 128, 4, 256, 10, 16), "cls").half(), "pools by cls"),
        (Encoder(EncoderConfig(2, 128, 4, 256, 10, 16, token_types=0)).half(), "bert model"),
        (Encoder(EncoderConfig(2, 128, 4, 256, 10, 16, relative_buckets=8)).half(), "bert model"),
    ],
)
def test_what_the_fused_kernel_computes(model: Encoder, reason: str | None) -> None:
    result = unsupported(model)
    assert result is None if reason is None else reason in (result or "")
    if reason:
        with pytest.raises(ValueError, match=reason):
            FusedEncoder(model)


def test_the_fast_path_takes_what_it_can(
    made: MadePath, tiny_model: LeapEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="leap.exits.paths"):
        _, layers = tiny_model.encode(
            ["ba", "be", "bi bo bu"], batch_size=2, threshold=0.5, min_layer=2, return_exit_layers=True
        )
        # Words between two special tokens: a batch of one row of five tokens, and one of two rows of three.
        assert made.ran == [2]
        assert made.learnt == layers[:2].tolist()
        tiny_model.encode(["ba"], strategy="patience", pabee_patience=2)
        tiny_model.encode(["ba"], strategy="patience", pabee_patience=2)
    assert made.ran == [2]
    assert caplog.messages == [
        "exit path: graphs, then cpu eager",
        "exit path: a batch runs by cpu eager, because 1 rows of up to 5 tokens fit no other",
        "exit path: a batch runs by cpu eager, because Patient needs every layer's pooled vectors",
    ]


def test_the_same_vectors_whatever_the_path(made: MadePath, tiny_model: LeapEncoder, sentences: list[str]) -> None:
    result = tiny_model.encode(sentences, threshold=0.9, min_layer=2, batch_size=4, return_exit_layers=True)
    made.takes = lambda batch: False  # type: ignore[method-assign]
    wanted = tiny_model.encode(sentences, threshold=0.9, min_layer=2, batch_size=4, return_exit_layers=True)
    assert made.ran
    np.testing.assert_allclose(result[0], wanted[0], atol=1e-5)
    assert result[1].tolist() == wanted[1].tolist()


def test_a_path_that_fails_is_left_with_one_line(
    made: MadePath, tiny_model: LeapEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    made.error = RuntimeError("encoder.cu does not compile: no\nmore")
    wanted = tiny_model.encode(["ba be bi"], strategy="full")
    with caplog.at_level(logging.WARNING, logger="leap.exits.paths"):
        tiny_model.encode(["ba"])
        tiny_model.encode(["ba"])
    assert made.ran == [1]
    assert caplog.messages == [
        "exit path graphs is not used any more (RuntimeError: encoder.cu does not compile: no): now cpu eager"
    ]
    np.testing.assert_array_equal(tiny_model.encode(["ba be bi"], strategy="full"), wanted)


def test_a_full_card_is_the_users_business(made: MadePath, tiny_model: LeapEncoder) -> None:
    made.error = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        tiny_model.encode(["ba"])
    assert tiny_model.paths.fast == (made,)


def test_a_wanted_path_that_fails_is_an_error(made: MadePath, tiny_model: LeapEncoder) -> None:
    made.error = ImportError("no triton")
    result = Paths(tiny_model.encoder, "graphs")
    batch = pack([[2, 7, 3]])
    with pytest.raises(UserError, match='path="graphs" does not work here: ImportError: no triton'):
        result.exits(batch, Fixed(2))


def test_a_path_that_computes_something_else_is_refused(
    tiny_model: LeapEncoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tiny_model.encoder.__class__(tiny_model.encoder.config).eval().requires_grad_(False).half()
    path = GraphPath(half)
    result = Paths(half)
    result.fast = (path,)
    monkeypatch.setattr(
        path.graphs, "run", lambda batch, plan, heads=None: (half(batch)[1], torch.full((batch.rows,), plan.stop))
    )
    with caplog.at_level(logging.WARNING, logger="leap.exits.paths"):
        vectors, _ = result.exits(pack([[2, 7, 3]]), Fixed(3))
    assert "graphs is not used any more (DisagreementError: full depth: cosine" in caplog.messages[0]
    torch.testing.assert_close(vectors, half(pack([[2, 7, 3]]))[3])


def test_a_path_is_compared_once(tiny_model: LeapEncoder) -> None:
    half = Encoder(tiny_model.encoder.config).eval().requires_grad_(False).half()
    path = GraphPath(half)
    result = Paths(half)
    result.fast = (path,)
    ran: list[int] = []
    run = path.graphs.run
    path.graphs.run = lambda batch, plan, heads=None: (ran.append(batch.rows), run(batch, plan, heads))[1]  # type: ignore[assignment,func-returns-value]
    for _ in range(2):
        result.exits(pack([[2, 7, 3]]), ExitRule(0.5, 2))
    assert ran == [len(LENGTHS)] * 27 + [1, 1]
    heads = ExitHeads(torch.eye(half.config.width).repeat(half.config.layers - 1, 1, 1))
    for _ in range(2):
        result.exits(pack([[2, 7, 3]]), ExitRule(0.5, 2), heads=heads)
    assert ran[29:] == [len(LENGTHS)] * 9 + [1, 1]
    assert not path.graphs.always
    assert not path.graphs.alone


def test_warming(made: MadePath, tiny_model: LeapEncoder) -> None:
    tiny_model.warm_up([1, 8], [16, 500], strategy="fixed", layer=2)
    assert made.warmed == [(1, 16), (1, 32), (8, 16), (8, 32)]
    tiny_model.warm_up([1], [16], threshold=0.9)
    assert made.warmed[-1] == (1, 16)
    with pytest.raises(ValueError, match="layer goes with"):
        tiny_model.warm_up(strategy="fixed")
    Paths(tiny_model.encoder).warm(1, 3, Patient(ExitRule(0.5, 2), 2))
    assert len(made.warmed) == 5
