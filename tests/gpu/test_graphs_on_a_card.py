"""The graphed path against its reference, on the GPU: kernels, captures, moves, threads, memory."""

import math
import random
import threading
from collections.abc import Iterator
from dataclasses import astuple

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

from leap.exits.cuda import exit_steps, graphs
from leap.exits.cuda.buckets import Bucket, Level, numbers_of, shape_of
from leap.exits.cuda.graphs import GraphEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.plan import Plan, fixed_plan
from leap.exits.precision import near_threshold
from leap.models.batches import pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# The last one's width is not the fused kernel's.
SIZES = {"384": (6, 384, 12), "768": (4, 768, 12), "96": (5, 96, 3)}
CASES = {
    "one row": [14],
    "one token": [1],
    "odd lengths": [1, 2, 3, 7, 15, 17, 31, 33, 63, 65, 127, 128],
    "32 of 128": [128] * 32,
    "mixed": [random.Random(1).randint(3, 128) for _ in range(32)],
    "many": [random.Random(2).randint(3, 60) for _ in range(400)],
}
# Plain calls, then the capture with its replay, then a replay.
TIMES = 3


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=[(size, kind) for size in SIZES for kind in KINDS], ids="-".join)
def engines(request: pytest.FixtureRequest) -> tuple[GraphEncoder, Encoder, float, float]:
    size, kind = request.param
    dtype, tolerance, least = KINDS[kind]
    reference = random_encoder(*SIZES[size]).to(dtype)
    return GraphEncoder(random_encoder(*SIZES[size]).to(dtype)), reference, tolerance, least


@pytest.fixture
def graphed() -> GraphEncoder:
    return GraphEncoder(random_encoder(*SIZES["384"]).half())


@pytest.mark.parametrize("way", ["scheduled", "always", "alone", "always alone"])
@pytest.mark.parametrize("case", CASES)
def test_every_call_equals_the_reference(
    engines: tuple[GraphEncoder, Encoder, float, float], case: str, way: str
) -> None:
    result, reference, tolerance, least = engines
    result.always, result.alone = "always" in way, "alone" in way
    batch, depth = batch_of(CASES[case]), result.depth
    pooled = reference(batch)
    for patience in (1, 2):
        rule = spread_rule(reference, batch, 3, patience)
        plan, wanted = plan_for(rule, depth), exit_forward(reference, batch, rule)
        for _ in range(TIMES):
            left = result.run(batch, plan)
            result.learn(plan, left[1].tolist())
            if batch.rows > 8:
                assert_same_exits(left, wanted, pooled, rule, tolerance, least)
    for layer in (1, 3, depth):
        for _ in range(TIMES):
            vectors, exits = result.run(batch, fixed_plan(layer, depth))
            assert exits.tolist() == [layer] * batch.rows
            assert cosine(vectors, layer_forward(reference, batch, layer)) >= least
    for _ in range(TIMES):
        vectors, exits = result.run(batch, forced_plan(3, depth))
        assert exits.tolist() == [3] * batch.rows
        assert cosine(vectors, pooled[3]) >= least


def test_the_costs_of_looks_and_moves_are_this_machines(graphed: GraphEncoder) -> None:
    written_down = graphed.costs
    graphed.measure_costs()
    assert graphed.costs != written_down
    # No upper bound: other work on the card makes a look longer.
    assert min(astuple(graphed.costs)) >= graphs.LEAST_COST_MS
    assert not graphed._graphed, "the batch that was timed is forgotten"


def test_the_kernels_equal_their_references() -> None:
    encoder, numbers = random_encoder(4, 96, 3, "cpu"), random.Random(3)
    on_card = random_encoder(4, 96, 3)
    moved = 0
    for seed in range(40):
        lengths = [numbers.randint(1, 100) for _ in range(numbers.choice([1, 5, 13, 40]))]
        slow_batch, patience = batch_of(lengths, seed, "cpu"), numbers.randint(1, 3)
        shape = shape_of(slow_batch.rows, len(slow_batch.ids), max(lengths), patience + 1)
        slow, fast = Bucket(shape, encoder), Bucket(shape, on_card)
        slow.levels[0].numbers.copy_(numbers_of(slow_batch, shape))
        fast.levels[0].numbers.copy_(slow.levels[0].numbers)
        limit, number = numbers.uniform(0.3, 0.8), 0
        base = torch.randn(shape.tokens, 96)
        for bucket in (slow, fast):
            bucket.thresholds.fill_(limit)
            bucket.epoch += 7
            bucket.runs = 7
        for layer in range(1, 5):
            kind = exit_steps.LAST if layer == 4 else 2 if layer > patience else 1
            for bucket in (slow, fast):
                level = bucket.levels[number]
                states = (base + torch.sin(base * 7 * layer) * 2 / layer)[: level.shape.tokens]
                exit_steps.exit_step(bucket, level, states.to(level.states.device), layer, patience, kind)
            torch.cuda.synchronize()
            assert same(slow.levels[number], fast.levels[number])
            assert fast.exits.cpu().equal(slow.exits)
            torch.testing.assert_close(fast.vectors.cpu(), slow.vectors, atol=1e-5, rtol=1e-5)
            if kind == exit_steps.TEST:
                assert fast.read_flag(layer) == slow.read_flag(layer)
                rows, tokens = slow.read_flag(layer) or (0, 0)
                sizes = [(level.shape.rows, level.shape.tokens) for level in slow.levels]
                fitting = [i for i, size in enumerate(sizes) if size[0] >= rows and size[1] >= tokens]
                if fitting[-1] > number:
                    moved += 1
                    for bucket in (slow, fast):
                        source, target = bucket.levels[number], bucket.levels[fitting[-1]]
                        source.states.copy_(base[: source.shape.tokens])
                        exit_steps.move_step(source, target)
                    number = fitting[-1]
                    assert same(slow.levels[number], fast.levels[number])
                    states = fast.levels[number].states[:tokens].cpu()
                    assert states.equal(slow.levels[number].states[:tokens])
    assert moved > 5


def same(slow: Level, fast: Level) -> bool:
    """The same rows with the same pooled vectors."""
    rows = int((slow.left >= 0).sum())
    torch.testing.assert_close(fast.recent[:, :rows].cpu(), slow.recent[:, :rows], atol=1e-5, rtol=1e-5)
    return (
        fast.left.cpu().equal(slow.left)
        and fast.offsets.cpu().equal(slow.offsets)
        and fast.names[:rows].cpu().equal(slow.names[:rows])
    )


@pytest.mark.parametrize(("threshold", "layer"), [(-1.0, 4), (1.01, 6), (math.inf, 6), (math.nan, 6)])
def test_boundaries(graphed: GraphEncoder, threshold: float, layer: int) -> None:
    graphed.always = True
    for _ in range(TIMES):
        _, exits = graphed.run(batch_of(CASES["mixed"]), Plan((math.inf,) * 3 + (threshold,) * 3, 1, 6))
        assert exits.unique().tolist() == [layer]


def test_mixed_batches_move_and_rows_do_not_depend_on_their_batch(graphed: GraphEncoder) -> None:
    batch = batch_of(CASES["mixed"])
    rule = spread_rule(graphed.encoder, batch, 3)
    plan, moves = plan_for(rule, 6), []
    move = graphed._move
    graphed._move = lambda *call: (moves.append(call), move(*call))[1]  # type: ignore[method-assign,func-returns-value]
    graphed.always = True
    for _ in range(TIMES):
        vectors, exits = graphed.run(batch, plan)
    assert moves
    assert len(exits.unique()) > 1
    near = near_threshold(graphed.encoder(batch), rule, KINDS["float16"][1])
    start = 0
    for row, length in enumerate(sorted(CASES["mixed"])):
        ids = batch.ids[start : start + length].tolist()
        start += length
        alone, layer = graphed.run(pack([ids]).to(torch.device("cuda")), plan)
        if not near[row]:
            assert layer.item() == exits[row].item()
            assert cosine(alone, vectors[row : row + 1]) >= 0.9999


def test_the_device_leaves_out_what_nobody_needs(graphed: GraphEncoder) -> None:
    batch = batch_of([100] * 4)
    plan = Plan((math.inf, math.inf, -1.0, math.inf, 2.0, math.inf), 1, 6)
    graphed.alone = True
    tested = []
    for _ in range(TIMES):
        vectors, exits = graphed.run(batch, plan)
        assert exits.tolist() == [3] * 4
        assert cosine(vectors, graphed.encoder(batch)[3]) >= 0.9999
        (kept,) = graphed._graphed.values()
        tested.append(bool(kept.bucket.counters[5].item()))
    assert tested == [True, False, False]  # by plain calls everything is computed


def test_a_row_alone_goes_on_without_the_host(graphed: GraphEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, plan = batch_of([120]), forced_plan(4, 6)
    for _ in range(100):
        graphed.learn(plan, graphed.run(batch, plan)[1].tolist())
    monkeypatch.setattr(GraphEncoder, "_wait_for_flag", lambda *_: pytest.fail("the host looked"))
    vectors, exits = graphed.run(batch, plan)
    assert exits.tolist() == [4]
    assert cosine(vectors, graphed.encoder(batch)[4]) >= 0.9999


@pytest.mark.parametrize("rows", [8, 100])
def test_rows_are_mapped_by_their_exits_heads(graphed: GraphEncoder, rows: int) -> None:
    batch = batch_of(CASES["mixed"][:rows] if rows < 32 else [20] * rows)
    plan = plan_for(spread_rule(graphed.encoder, batch, 3), 6)
    heads = ExitHeads(torch.randn(5, 384, 384, device="cuda"))
    for _ in range(2 * TIMES):
        plain, exits = graphed.run(batch, plan)
        vectors, layers = graphed.run(batch, plan, heads)
        assert layers.tolist() == exits.tolist()
        assert cosine(vectors, ExitHeads(heads.maps.cpu()).at_exits(plain.cpu(), exits.cpu())) >= 0.9999
    assert len(exits.unique()) > 1


def test_two_threads_on_two_streams(graphed: GraphEncoder) -> None:
    batches = [batch_of([100] * 16, seed) for seed in range(2)]
    plan = forced_plan(4, 6)
    for batch in batches:
        for _ in range(TIMES):
            graphed.run(batch, plan)
    expected = [graphed.run(batch, plan)[0] for batch in batches]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def encode(number: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                vectors, exits = graphed.run(batches[number], plan)
                if exits.tolist() != [4] * 16 or cosine(vectors, expected[number]) < 0.99999:
                    wrong.append(number)

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, graphed: GraphEncoder) -> None:
    monkeypatch.setattr(graphs, "BUCKETS", 4)
    plan = plan_for(spread_rule(graphed.encoder, batch_of(CASES["mixed"]), 3), 6)
    held = []
    for _ in range(3):
        for rows in (1, 2, 4, 8, 16, 32, 64):
            for _ in range(TIMES):
                graphed.run(batch_of([60] * rows), plan)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert len(graphed._graphed) == 4
    assert held[2] <= held[1] + 2**22


def test_a_warmed_bucket_captures_nothing_more(graphed: GraphEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([100] * 32)
    rule = spread_rule(graphed.encoder, batch, 3)
    plan = plan_for(rule, 6)
    graphed.warm(32, 100, plan)
    monkeypatch.setattr(GraphEncoder, "_capture", lambda *_: pytest.fail("captured"))
    wanted = exit_forward(graphed.encoder, batch, rule)
    pooled = graphed.encoder(batch)
    for always in (False, True, False):
        graphed.always = always
        for _ in range(5):
            result = graphed.run(batch, plan)
            graphed.learn(plan, result[1].tolist())
            assert_same_exits(result, wanted, pooled, rule, *KINDS["float16"][1:])


def test_the_clock_is_fed(graphed: GraphEncoder) -> None:
    batch, plan = batch_of([100] * 32), fixed_plan(6, 6)
    for _ in range(8):
        graphed.run(batch, plan)
        torch.cuda.synchronize()
    (kept,) = graphed._graphed.values()
    assert 0.001 < kept.clock.layer(0) < 5
