"""The fused kernel against its reference implementation, on the GPU.

    python -m pytest -o addopts="" tests/gpu

Half precision: a row may leave elsewhere than in the reference only where a cosine lies within the kind's
tolerance of the threshold (random_encoders.KINDS); vectors that left together have at least its cosine.
"""

import math
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from random_encoders import (
    KINDS,
    assert_same_exits,
    batch_of,
    cosine,
    forced_plan,
    plan_for,
    random_encoder,
    spread_rule,
)

from leap.exits.cuda.compiled import Kernel
from leap.exits.cuda.fused import STREAMS, FusedEncoder
from leap.exits.cuda.layouts import layout_of, shapes
from leap.exits.cuda.tiles import TileShape
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.plan import Plan, fixed_plan
from leap.exits.precision import near_threshold
from leap.models.batches import pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs a Hopper GPU",
    ),
]

SIZES = {"384": (6, 384, 12), "128": (5, 128, 4), "768": (4, 768, 12)}
CASES = {
    "one short row": [1],
    "one row": [14],
    "tile's end": [16, 16, 16],
    "odd lengths": [1, 2, 3, 7, 15, 17, 31, 33, 63],
    "mixed": [random.Random(1).randint(3, 40) for _ in range(32)],
    "more tiles than groups": [random.Random(2).randint(3, 60) for _ in range(400)],
}


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def compiled(fused: FusedEncoder) -> FusedEncoder:
    """With its kernels compiled side by side: one after the other takes minutes."""

    def make(shape: TileShape) -> Kernel:
        return Kernel(fused.config, shape, fused.encoder.words.weight.dtype, fused.device)

    made = shapes(fused.config)
    with ThreadPoolExecutor(8) as threads:
        fused._kernels |= dict(zip(made, threads.map(make, made), strict=True))
    return fused


@pytest.fixture(scope="module", params=[(size, kind) for size in SIZES for kind in KINDS], ids="-".join)
def engines(request: pytest.FixtureRequest) -> tuple[FusedEncoder, Encoder, float, float]:
    size, kind = request.param
    dtype, tolerance, least = KINDS[kind]
    reference = random_encoder(*SIZES[size]).to(dtype)
    fused = compiled(FusedEncoder(random_encoder(*SIZES[size]).to(dtype)))
    return fused, reference, tolerance, least


@pytest.fixture(scope="module")
def fused() -> FusedEncoder:
    return compiled(FusedEncoder(random_encoder(*SIZES["384"]).half()))


@pytest.mark.parametrize("case", CASES)
def test_every_shape_equals_the_reference(engines: tuple[FusedEncoder, Encoder, float, float], case: str) -> None:
    fused, reference, tolerance, least = engines
    depth, width = fused.config.layers, fused.config.width
    heads = ExitHeads(torch.eye(width, device="cuda") + 0.1 * torch.randn(depth - 1, width, width, device="cuda"))
    for shape in shapes(fused.config):
        lengths = sorted(min(length, shape.tokens) for length in CASES[case])
        batch = batch_of(lengths)
        placed = fused.place(batch, layout_of(lengths, shape, fused.processors, 8))
        for layer in (1, depth):
            assert cosine(fused.at(placed, layer), layer_forward(reference, batch, layer)) >= least
        pooled = reference(batch)
        for patience in (1, 2):
            rule = spread_rule(reference, batch, 3, patience)
            actual, wanted = fused.run(placed, plan_for(rule, depth)), exit_forward(reference, batch, rule)
            if len(lengths) > 8:
                assert_same_exits(actual, wanted, pooled, rule, tolerance, least)
                assert wanted[1].unique().numel() > 1
        for layer, plan in ((3, forced_plan(3, depth)), (2, fixed_plan(2, depth)), (None, plan_for(rule, depth))):
            vectors, exits = fused.run(placed, plan)
            if layer is not None:
                assert exits.tolist() == [layer] * len(lengths)
                assert cosine(vectors, pooled[layer]) >= least
            mapped, layers = fused.run(placed, plan, heads)
            assert torch.equal(layers, exits)
            torch.testing.assert_close(mapped, heads.at_exits(vectors, exits), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("threshold", "layer"), [(-1.0, 4), (1.01, 6), (math.inf, 6), (math.nan, 6)])
def test_boundaries(fused: FusedEncoder, threshold: float, layer: int) -> None:
    batch = batch_of(CASES["mixed"])
    vectors, exits = fused.run(batch, Plan((math.inf,) * 3 + (threshold,) * 3, 1, 6))
    assert exits.unique().tolist() == [layer]
    torch.testing.assert_close(vectors, fused.at(batch, layer), atol=0, rtol=0)


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_patience(fused: FusedEncoder, patience: int) -> None:
    _, exits = fused.run(batch_of([14] * 5), Plan((-1.0,) * 6, patience, 6))
    assert exits.tolist() == [patience + 1] * 5


def test_rows_do_not_depend_on_their_batch(fused: FusedEncoder) -> None:
    batch = batch_of(CASES["mixed"])
    rule = spread_rule(fused.encoder, batch, 3)
    plan = plan_for(rule, 6)
    vectors, exits = fused.run(batch, plan)
    assert len(exits.unique()) > 1
    near = near_threshold(fused.encoder(batch), rule, KINDS["float16"][1])
    start = 0
    for row, length in enumerate(sorted(CASES["mixed"])):
        ids = batch.ids[start : start + length].tolist()
        start += length
        alone, layer = fused.run(pack([ids]), plan)
        if not near[row]:
            assert layer.item() == exits[row].item()
            assert cosine(alone, vectors[row : row + 1]) >= 0.9999


def test_repeated_calls_of_other_sizes_give_the_same(fused: FusedEncoder) -> None:
    first = {case: fused.full(batch_of(lengths)) for case, lengths in CASES.items()}
    for case in [*CASES, *reversed(CASES)]:
        assert torch.equal(fused.full(batch_of(CASES[case])), first[case])


def test_many_launches_in_a_row_and_bounded_work_space(fused: FusedEncoder) -> None:
    batch = fused.place(batch_of([14]))
    expected = fused.full(batch)
    results = [fused.full(batch) for _ in range(300)]
    assert all(torch.equal(result, expected) for result in results)
    for stream in [torch.cuda.Stream() for _ in range(STREAMS + 2)]:
        with torch.cuda.stream(stream):
            assert torch.equal(fused.full(batch), expected)
        stream.synchronize()
    assert len(fused._work) <= STREAMS


def test_a_launch_in_a_graph(fused: FusedEncoder) -> None:
    placed = fused.place(batch_of([14]))
    expected = fused.full(placed)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fused.full(placed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            actual = fused.full(placed)
        for _ in range(3):
            graph.replay()
    stream.synchronize()
    assert torch.equal(actual, expected)


def test_two_threads_on_two_streams(fused: FusedEncoder) -> None:
    batches = [batch_of([14] * 8, seed) for seed in range(2)]
    expected = [fused.full(batch) for batch in batches]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def encode(number: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                if not torch.equal(fused.full(batches[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_weights_changed_in_place_are_seen(fused: FusedEncoder) -> None:
    batch = batch_of([9, 14])
    before = fused.full(batch)
    parts = (fused.encoder.layers[2].up.weight, fused.encoder.layers[1].norm.bias)
    for part in parts:
        kept = part.data.clone()
        part.data.mul_(1.1)
        changed = fused.full(batch)
        assert not torch.equal(changed, before)
        assert cosine(changed, layer_forward(fused.encoder, batch, 6)) >= 0.9999
        part.data.copy_(kept)
    assert torch.equal(fused.full(batch), before)
