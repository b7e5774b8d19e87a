"""The graphed path's schedule with plain calls instead of graphs, against the layer-by-layer computation."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from leap.exits.cuda import graphs
from leap.exits.cuda.buckets import Bucket
from leap.exits.cuda.graphs import GraphEncoder, warm_stretches
from leap.exits.forward import exit_forward
from leap.exits.plan import Plan, plan_of
from leap.exits.policy import ExitPolicy, Fixed, capped
from leap.exits.rules import ExitRule, consecutive_similarity
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder, EncoderConfig

DEPTH = 6
CONFIG = EncoderConfig(layers=DEPTH, width=32, heads=2, intermediate=64, vocabulary=50, positions=130)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    made = Encoder(CONFIG).eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.2)
    return made


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    numbers = random.Random(seed)
    return pack([[numbers.randrange(50) for _ in range(length)] for length in sorted(lengths)])


def spread_rule(encoder: Encoder, batch: Batch, share: float, min_layer: int, patience: int) -> ExitRule:
    """A rule whose threshold lies among the batch's similarities."""
    scores = consecutive_similarity(encoder(batch), patience)[patience:]
    return ExitRule(scores.quantile(share).item(), min_layer, patience)


def counted(found: GraphEncoder, name: str) -> list[tuple[object, ...]]:
    """The calls of a method from now on."""
    calls: list[tuple[object, ...]] = []
    method: Callable[..., object] = getattr(found, name)

    def call(graphed: object, *arguments: object) -> object:
        calls.append(arguments)
        return method(graphed, *arguments)

    setattr(found, name, call)
    return calls


@pytest.mark.parametrize("way", ["scheduled", "always", "alone", "always alone"])
def test_every_batch_leaves_as_layer_by_layer(encoder: Encoder, way: str) -> None:
    result, numbers = GraphEncoder(encoder), random.Random(1)
    result.always, result.alone = "always" in way, "alone" in way
    moves = counted(result, "_move")
    layers: set[int] = set()
    for seed in range(60):
        rows, patience = numbers.choice([1, 3, 8, 40]), numbers.randint(1, 3)
        batch = batch_of([numbers.randint(1, 60) for _ in range(rows)], seed)
        policy: ExitPolicy = Fixed(numbers.randint(1, DEPTH))
        if seed % 3:
            share = numbers.random()
            policy = spread_rule(encoder, batch, share, numbers.randint(1, 5), patience)
        if seed % 3 == 2:
            policy = capped(policy, numbers.randint(1, DEPTH), DEPTH)
        plan = plan_of(policy, DEPTH)
        assert plan is not None
        vectors, exits = result.run(batch, plan)
        expected, wanted = exit_forward(encoder, batch, policy)
        assert torch.equal(exits, wanted)
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-4)
        result.learn(plan, exits.tolist())
        layers |= set(exits.tolist())
    assert layers == set(range(1, DEPTH + 1))
    if way == "always":
        assert len(moves) > 5
        assert {target for _, target in moves} >= {1, 2, 3}
    elif result.always:
        assert moves


def test_a_bias_by_relative_position_goes_along() -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(CONFIG, relative_buckets=8)).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.4)
    result = GraphEncoder(encoder)
    result.always = True
    moves = counted(result, "_move")
    for seed in range(5):
        batch = batch_of([1, 2, 5, 5, 20, 33, 40, 60] * 5, seed)
        rule = spread_rule(encoder, batch, 0.5, 2, 1)
        plan = plan_of(rule, DEPTH)
        assert plan is not None
        vectors, exits = result.run(batch, plan)
        expected, wanted = exit_forward(encoder, batch, rule)
        assert torch.equal(exits, wanted)
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-4)
    assert moves


def test_each_batch_is_mapped_once_by_its_exits_heads(encoder: Encoder) -> None:
    result, batch = GraphEncoder(encoder), batch_of([1, 2, 5, 5, 20, 33, 40, 60])
    plan = plan_of(spread_rule(encoder, batch, 0.5, 2, 1), DEPTH)
    assert plan is not None
    torch.manual_seed(0)
    heads = ExitHeads(torch.randn(DEPTH - 1, CONFIG.width, CONFIG.width))
    plain, exits = result.run(batch, plan)
    for _ in range(3):
        vectors, layers = result.run(batch, plan, heads)
        assert torch.equal(layers, exits)
        torch.testing.assert_close(vectors, heads.at_exits(plain, exits))
    assert torch.equal(result.run(batch, plan)[0], plain)


def test_layers_after_the_last_exit_are_not_computed(encoder: Encoder) -> None:
    result = GraphEncoder(encoder)
    plan = Plan((torch.inf, -1.0, torch.inf, 2.0, 2.0, torch.inf), 1, DEPTH)
    batch = batch_of([5] * 4)
    for _ in range(100):
        result.learn(plan, [2] * 4)
    stretches = counted(result, "_stretch")
    _, exits = result.run(batch, plan)
    assert exits.tolist() == [2] * 4
    assert [stretch[1:4] for stretch in stretches] == [(0, 2, ())]


def test_a_batch_that_stays_is_one_stretch(encoder: Encoder) -> None:
    result = GraphEncoder(encoder)
    plan = Plan((torch.inf, 2.0, 2.0, 2.0, 2.0, torch.inf), 1, DEPTH)
    for _ in range(200):
        result.learn(plan, [DEPTH] * 4)
    stretches = counted(result, "_stretch")
    _, exits = result.run(batch_of([5] * 4), plan)
    assert exits.tolist() == [DEPTH] * 4
    assert [stretch[1:4] for stretch in stretches] == [(0, DEPTH, ())]


def test_a_look_never_moves_an_exit(encoder: Encoder) -> None:
    """Traffic that is wrong about a batch costs time only."""
    batch = batch_of(list(range(3, 35)))
    rule = spread_rule(encoder, batch, 0.5, 2, 1)
    plan = plan_of(rule, DEPTH)
    assert plan is not None
    _, wanted = exit_forward(encoder, batch, rule)
    assert len(wanted.unique()) > 2
    for traffic in ([2] * 32, [DEPTH] * 32, [2, 4] * 16):
        result = GraphEncoder(encoder)
        for _ in range(200):
            result.learn(plan, traffic)
        assert torch.equal(result.run(batch, plan)[1], wanted)


def test_thresholds_of_the_batch_before_are_not_kept(encoder: Encoder) -> None:
    result, batch = GraphEncoder(encoder), batch_of([9, 9])
    for layer in (2, 4, 3, 2):
        limits = [torch.inf] * DEPTH
        limits[layer - 1] = -1.0
        assert result.run(batch, Plan(tuple(limits), 1, DEPTH))[1].tolist() == [layer] * 2


def test_results_are_not_overwritten_by_the_next_batch(encoder: Encoder) -> None:
    result = GraphEncoder(encoder)
    plan = plan_of(Fixed(3), DEPTH)
    assert plan is not None
    first, exits = result.run(batch_of([7, 8], 1), plan)
    graphed = first.clone()
    result.run(batch_of([7, 8], 2), Plan((torch.inf,) * DEPTH, 1, DEPTH))
    assert torch.equal(first, graphed)
    assert exits.tolist() == [3, 3]


def test_buffers_are_bounded(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "BUCKETS", 3)
    result = GraphEncoder(encoder)
    plan = Plan((torch.inf,) * DEPTH, 1, DEPTH)
    for rows in (1, 2, 4, 8, 16):
        result.run(batch_of([20] * rows), plan)
    assert len(result._graphed) == 3
    monkeypatch.setattr(graphs, "HELD_TOKENS", result.held_tokens())
    result.run(batch_of([20] * 3), plan)
    assert result.held_tokens() <= graphs.HELD_TOKENS
    monkeypatch.setattr(graphs, "HELD_TOKENS", 1)
    result.run(batch_of([20] * 40), plan)
    assert len(result._graphed) == 1


def test_a_failure_leaves_no_half_filled_bucket(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    result, batch = GraphEncoder(encoder), batch_of([4, 5])
    plan = Plan((torch.inf,) * DEPTH, 1, DEPTH)
    wanted = result.run(batch, plan)[0]

    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr(graphs, "exit_step", broken)
        with pytest.raises(RuntimeError, match="out of order"):
            result.run(batch, plan)
    assert not result._graphed
    assert torch.equal(result.run(batch, plan)[0], wanted)


def test_warming_covers_what_a_schedule_can_ask_for() -> None:
    plan = Plan((torch.inf, torch.inf, 0.5, 0.5, torch.inf, torch.inf), 1, 6)
    by_host = {(0, 0, 3), (0, 0, 4), (0, 0, 6), (0, 3, 4), (0, 3, 6), (0, 4, 6), (1, 3, 4), (1, 3, 6), (1, 4, 6)}
    assert set(warm_stretches(plan, 2, by_device=False)) == {(*stretch, ()) for stretch in by_host}
    from_the_start = {(0, 0, 6, looks) for looks in ((3,), (4,), (3, 4))}
    later = {(level, 3, 6, (4,)) for level in (0, 1)}
    with_device = set(warm_stretches(plan, 2, by_device=True))
    assert with_device == {(*stretch, ()) for stretch in by_host} | from_the_start | later
    assert list(warm_stretches(Plan((torch.inf,) * 6, 1, 6), 3, by_device=True)) == [(0, 0, 6, ())]


@pytest.mark.parametrize(
    ("rows", "tokens", "longest", "fit"),
    [
        (32, 4096, 128, True),
        (1, 256, 256, True),
        (1, 257, 257, False),
        (4000, 4000, 1, False),
        (512, 40000, 128, False),
    ],
)
def test_what_fits(rows: int, tokens: int, longest: int, fit: bool) -> None:
    assert graphs.fits(rows, tokens, longest) is fit


class MadeEvent:
    """An event of a stream that never waits; a layer takes half a millisecond."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.recorded = False

    def record(self, stream: object = None) -> None:
        self.recorded = True

    def query(self) -> bool:
        return self.recorded

    def elapsed_time(self, end: object) -> float:
        return 3.0


class MadeStream:
    """A stream on which everything is done at once."""

    def wait_event(self, event: object) -> None:
        pass

    def query(self) -> bool:
        return True


@pytest.fixture
def as_on_card(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> tuple[GraphEncoder, list[str]]:
    """A GraphEncoder that captures: what it captures is kept and called again. And what it captured."""
    result = GraphEncoder(encoder)
    captured: list[str] = []

    def capture(work: Callable[[], None], pool: object) -> Callable[[], None]:
        captured.append("captured")
        return work

    monkeypatch.setattr(GraphEncoder, "_capture", staticmethod(capture))
    monkeypatch.setattr(torch.cuda, "Event", MadeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: MadeStream())
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: object())
    result.on_card, result._free = True, MadeEvent()
    return result, captured


def test_the_second_time_captures_and_the_third_replays(
    as_on_card: tuple[GraphEncoder, list[str]], encoder: Encoder
) -> None:
    result, captured = as_on_card
    batch = batch_of([20] * 4)
    plan = plan_of(Fixed(DEPTH), DEPTH)
    assert plan is not None
    wanted = exit_forward(encoder, batch, Fixed(DEPTH))[0]
    counts = []
    for _ in range(4):
        torch.testing.assert_close(result.run(batch, plan)[0], wanted)
        counts.append(len(captured))
    assert counts == [0, 1, 1, 1]
    (graphed,) = result._graphed.values()
    assert graphed.clock.layer(0) == 0.5


def test_a_warmed_bucket_captures_nothing_more(
    as_on_card: tuple[GraphEncoder, list[str]], encoder: Encoder
) -> None:
    result, captured = as_on_card
    batch = batch_of([30] * 16)
    rule = spread_rule(encoder, batch, 0.6, 2, 1)
    plan = plan_of(rule, DEPTH)
    assert plan is not None
    result.warm(16, 30, plan)
    warmed = len(captured)
    assert warmed > 20
    wanted = exit_forward(encoder, batch, rule)[1]
    for always in (True, False, False, True):
        result.always = always
        exits = result.run(batch, plan)[1]
        assert torch.equal(exits, wanted)
        result.learn(plan, exits.tolist())
    assert len(captured) == warmed


def test_a_flag_that_never_comes_is_an_error(
    as_on_card: tuple[GraphEncoder, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = as_on_card
    result.always = True
    monkeypatch.setattr(Bucket, "read_flag", lambda *_: None)
    with pytest.raises(RuntimeError, match="exit test of layer 2 did not tell"):
        result.run(batch_of([5, 6]), Plan((torch.inf, 0.5, *[torch.inf] * 4), 1, DEPTH))


def test_graphs_of_a_bucket_are_bounded(
    as_on_card: tuple[GraphEncoder, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = as_on_card
    monkeypatch.setattr(graphs, "GRAPHS", 3)
    batch = batch_of([20] * 4)
    for layer in (1, 2, 3, 4, 5, 6):
        plan = plan_of(Fixed(layer), DEPTH)
        assert plan is not None
        assert result.run(batch, plan)[1].tolist() == [layer] * 4
        (graphed,) = result._graphed.values()
        assert len(graphed.calls) <= 4
