"""`LeapEncoder` on a card: every path gives what layer by layer gives, and a wrong one is not used."""

import logging
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import write_folder
from torch import Tensor

from leap.core.errors import UserError
from leap.exits import LeapEncoder
from leap.exits.cuda.fused import FusedEncoder
from leap.exits.precision import near_threshold
from leap.exits.rules import ExitRule
from leap.models.exit_heads import ExitHeads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs a Hopper GPU",
    ),
]

HALF = {"dtype": "float16"}
EXITS = {"threshold": 0.9, "min_layer": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers of width 128, heads of 64."""
    return write_folder(tmp_path_factory.mktemp("card") / "model", width=128)


@pytest.fixture(scope="module")
def eager(folder: Path) -> LeapEncoder:
    return LeapEncoder(folder, "cuda", model_kwargs=HALF, path="eager")


def near(model: LeapEncoder, sentences: list[str], rule: ExitRule) -> np.ndarray:
    result = np.zeros(len(sentences), dtype=bool)
    for rows, pooled in model.pooled_layers(sentences):
        result[rows] = near_threshold(pooled, rule, 2e-3).numpy()
    return result


@pytest.fixture(scope="module")
def rule(eager: LeapEncoder, sentences: list[str]) -> ExitRule:
    """Half of the sentences reach it at layer 2."""
    pooled = torch.cat([part for _, part in eager.pooled_layers(sentences)], 1)
    scores = torch.cosine_similarity(pooled[2], pooled[1], dim=-1)
    return ExitRule(scores.median().item(), 2)


@pytest.mark.parametrize("path", ["auto", "fused", "graphs"])
@pytest.mark.parametrize("batch_size", [1, 7, 60])
def test_every_path_gives_the_same(
    folder: Path, eager: LeapEncoder, sentences: list[str], rule: ExitRule, path: str, batch_size: int
) -> None:
    model = LeapEncoder(folder, "cuda", model_kwargs=HALF, path=path)  # type: ignore[arg-type]
    options = {"threshold": rule.threshold, "min_layer": 2, "return_exit_layers": True}
    wanted, layers = eager.encode(sentences, **options)
    allowed = near(eager, sentences, rule)
    assert 0.1 < (layers == 2).mean() < 0.9
    for _ in range(3):
        result, exits = model.encode(sentences, batch_size=batch_size, **options)
        same = exits == layers
        assert (same | allowed).all()
        cosines = (result * wanted).sum(1) / np.linalg.norm(result, axis=1) / np.linalg.norm(wanted, axis=1)
        assert cosines[same].min() >= 0.9999
        for options_of in ({"strategy": "full"}, {"strategy": "fixed", "layer": 3}):
            one, other = model.encode(sentences, **options_of), eager.encode(sentences, **options_of)
            cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
            assert cosines.min() >= 0.9999
    assert model.paths.fast, "a path was refused"
    if path == "auto":
        assert [fast.name for fast in model.paths.fast] == ["fused", "graphs"]


@pytest.mark.parametrize("path", ["auto", "fused", "graphs", "eager"])
@pytest.mark.parametrize("batch_size", [1, 7, 100])  # one product, the kernel, a product a layer
def test_exit_heads_map_on_the_card(
    tmp_path: Path, folder: Path, sentences: list[str], rule: ExitRule, path: str, batch_size: int
) -> None:
    with_heads = shutil.copytree(folder, tmp_path / "heads")
    generator = torch.Generator().manual_seed(5)
    maps = torch.eye(128) + 0.1 * torch.randn(4, 128, 128, generator=generator)
    ExitHeads(maps).save(with_heads)
    every = torch.cat([maps, torch.eye(128)[None]])
    plain = LeapEncoder(folder, "cuda", model_kwargs=HALF, path=path)  # type: ignore[arg-type]
    model = LeapEncoder(with_heads, "cuda", model_kwargs=HALF, path=path)  # type: ignore[arg-type]
    texts = (sentences * 3)[:150]
    ways: list[dict[str, Any]] = [
        {"threshold": rule.threshold, "min_layer": 2},
        {"strategy": "fixed", "layer": 3},
        {"strategy": "full"},
    ]
    for options in ways:
        vectors, exits = plain.encode(texts, batch_size=batch_size, return_exit_layers=True, **options)
        mapped, layers = model.encode(texts, batch_size=batch_size, return_exit_layers=True, **options)
        assert (layers == exits).all()
        wanted = torch.bmm(torch.as_tensor(vectors)[:, None], every[torch.as_tensor(exits) - 1])[:, 0]
        np.testing.assert_allclose(mapped, wanted.numpy(), atol=2e-2, rtol=2e-2)


def test_warming_finds_where_graphs_are_faster(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = LeapEncoder(folder, "cuda", model_kwargs=HALF)
    with caplog.at_level(logging.INFO, logger="leap.exits.paths"):
        model.warm_up([1, 64], [16], **EXITS)
    timed = [message for message in caplog.messages if "tokens are fused" in message]
    assert len(timed) == 2
    fused, graphs = (float(figure) for figure in re.findall(r"([0-9.]+) ms", timed[1]))
    most = int(re.findall(r"up to (\d+) tokens", timed[1])[0])
    assert (most >= 1024) == (fused <= graphs)


def test_half_after_loading(folder: Path, eager: LeapEncoder, sentences: list[str]) -> None:
    model = LeapEncoder(folder, "cuda")
    assert model.paths.fast == ()
    vectors = model.half().encode(sentences, strategy="full")
    assert [fast.name for fast in model.paths.fast] == ["fused", "graphs"]
    np.testing.assert_allclose(vectors, eager.encode(sentences, strategy="full"), atol=2e-2)
    back = model.to("cpu").encode(sentences[:3], strategy="full")
    np.testing.assert_allclose(back, vectors[:3], atol=2e-2)


def test_a_forced_path_that_cannot_work(folder: Path) -> None:
    with pytest.raises(UserError, match="float32"):
        LeapEncoder(folder, "cuda", path="fused").encode("ba")
    with pytest.raises(UserError, match="float32"):
        LeapEncoder(folder, "cuda", path="graphs").encode("ba")


@pytest.fixture
def wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that turns the vectors round."""
    run = FusedEncoder.run

    def turned(self: FusedEncoder, *arguments: object) -> tuple[Tensor, Tensor]:
        vectors, exits = run(self, *arguments)  # type: ignore[arg-type]
        return vectors.flip(0), exits

    monkeypatch.setattr(FusedEncoder, "run", turned)


@pytest.mark.usefixtures("wrong_kernel")
def test_a_wrong_kernel_is_not_used(
    folder: Path, eager: LeapEncoder, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = LeapEncoder(folder, "cuda", model_kwargs=HALF)
    with caplog.at_level(logging.WARNING, logger="leap.exits.paths"):
        vectors = model.encode(sentences, strategy="full")
    assert "exit path fused is not used any more (DisagreementError: full depth: cosine" in caplog.messages[0]
    assert [fast.name for fast in model.paths.fast] == ["graphs"]
    np.testing.assert_allclose(vectors, eager.encode(sentences, strategy="full"), atol=2e-2)
    with pytest.raises(UserError, match='path="fused" does not work here: DisagreementError'):
        LeapEncoder(folder, "cuda", model_kwargs=HALF, path="fused").encode("ba")


def test_two_threads_encode_at_once(folder: Path, eager: LeapEncoder, sentences: list[str]) -> None:
    model = LeapEncoder(folder, "cuda", model_kwargs=HALF)
    wanted = eager.encode(sentences, strategy="full")
    wrong: list[float] = []

    def encode(batch_size: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                result = model.encode(sentences, strategy="full", batch_size=batch_size)
                difference = float(np.abs(result - wanted).max())
                if difference > 2e-2:
                    wrong.append(difference)

    threads = [threading.Thread(target=encode, args=(size,)) for size in (5, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert len(model.paths.fast) == 2


def test_warming_leaves_nothing_to_compile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leap.exits.cuda import fused

    model = LeapEncoder(folder, "cuda", model_kwargs=HALF)
    model.warm_up([1, 8], [16, 32], **EXITS)
    monkeypatch.setattr(fused, "Kernel", lambda *_: pytest.fail("compiled"))
    model.encode(["ba be bi"] * 8, batch_size=8, **EXITS)  # type: ignore[arg-type]
    model.encode("ba", **EXITS)  # type: ignore[arg-type]
    assert [fast.name for fast in model.paths.fast] == ["fused", "graphs"]
