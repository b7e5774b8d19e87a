"""The fused kernel against its slow twin, on the GPU.

    python -m pytest -o addopts="" tests/gpu

Half precision: a row may leave elsewhere than in the twin only where its cosine lies within TOLERANCE of the
threshold; vectors that left at the same layer have cosine COSINE.
"""

import math
import random
import threading

import pytest
import torch

from leap.exits.forward import exit_forward, layer_forward
from leap.exits.fused import STREAMS, FusedEncoder
from leap.exits.layouts import layout_of, shapes
from leap.exits.paths import FusedPath, choose_path
from leap.exits.rules import ExitRule, consecutive_similarity
from leap.model.batches import Batch, pack
from leap.model.encoder import Encoder, EncoderConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs a Hopper GPU",
    ),
]

MOST_NEAR = 0.5
SIZES = {"384": (6, 384, 12), "128": (5, 128, 4), "768": (3, 768, 12)}
KINDS = {"float16": (torch.float16, 1e-3, 0.9999), "bfloat16": (torch.bfloat16, 8e-3, 0.999)}
CASES = {
    "one short row": [1],
    "one row": [14],
    "tile's end": [16, 16, 16],
    "mixed": [random.Random(1).randint(3, 40) for _ in range(32)],
    "more tiles than groups": [random.Random(2).randint(3, 60) for _ in range(400)],
}


def random_encoder(layers: int, width: int, heads: int) -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig(layers, width, heads, 4 * width, vocabulary=1000, positions=256)
    encoder = Encoder(config).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.05)
        else:
            parameter.data += torch.randn_like(parameter) * 0.05
    return encoder.cuda()


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    numbers = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 1000, (n,), generator=numbers).tolist() for n in sorted(lengths)]
    return pack(rows).to(torch.device("cuda"))


def median_threshold(encoder: Encoder, batch: Batch) -> float:
    """Half of the rows leave at the first check after layer 2."""
    return consecutive_similarity(encoder(batch), 1)[2].median().item()


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.cosine_similarity(a.double(), b.double(), dim=-1).min().item()


@pytest.fixture(autouse=True)
def inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=[(size, kind) for size in SIZES for kind in KINDS], ids="-".join)
def engines(request: pytest.FixtureRequest) -> tuple[FusedEncoder, Encoder, float, float]:
    size, kind = request.param
    dtype, tolerance, least = KINDS[kind]
    twin = random_encoder(*SIZES[size]).to(dtype)
    fused = FusedEncoder(random_encoder(*SIZES[size]).to(dtype))
    return fused, twin, tolerance, least


@pytest.fixture(scope="module")
def fused() -> FusedEncoder:
    return FusedEncoder(random_encoder(*SIZES["384"]).half())


@pytest.mark.parametrize("case", CASES)
def test_every_shape_equals_the_slow_twin(
    engines: tuple[FusedEncoder, Encoder, float, float], case: str
) -> None:
    fused, twin, tolerance, least = engines
    for shape in shapes(fused.config):
        lengths = sorted(min(length, shape.tokens) for length in CASES[case])
        batch = batch_of(lengths)
        placed = fused.place(batch, layout_of(lengths, shape, fused.processors, 8))
        for layer in (1, fused.config.layers):
            assert cosine(fused.at(placed, layer), layer_forward(twin, batch, layer)) >= least
        threshold = median_threshold(twin, batch)
        vectors, exits = fused.exit(placed, [math.inf] * 2 + [threshold] * (fused.config.layers - 2))
        expected, layers = exit_forward(twin, batch, ExitRule(threshold, 3))
        near = (consecutive_similarity(twin(batch), 1) - threshold).abs().min(0).values.cpu() < tolerance
        same = exits.cpu() == layers
        assert (same | near).all()
        assert cosine(vectors[same.cuda()], expected[same.cuda()]) >= least
        # On random models few cosines are near; more would make the comparison above empty.
        assert near.double().mean() <= MOST_NEAR


@pytest.mark.parametrize(("threshold", "layer"), [(-1.0, 4), (1.0001, 6), (math.inf, 6)])
def test_boundaries(fused: FusedEncoder, threshold: float, layer: int) -> None:
    limits = [math.inf] * 3 + [threshold] * 3
    vectors, exits = fused.exit(batch_of(CASES["mixed"]), limits)
    assert exits.unique().tolist() == [layer]
    torch.testing.assert_close(vectors, fused.at(batch_of(CASES["mixed"]), layer), atol=0, rtol=0)


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_patience(fused: FusedEncoder, patience: int) -> None:
    _, exits = fused.exit(batch_of([14] * 5), [-1.0] * 6, patience)
    assert exits.tolist() == [patience + 1] * 5


def test_rows_do_not_depend_on_their_batch(fused: FusedEncoder) -> None:
    batch = batch_of(CASES["mixed"])
    threshold = median_threshold(fused.encoder, batch)
    limits = [math.inf] * 2 + [threshold] * 4
    vectors, exits = fused.exit(batch, limits)
    assert len(exits.unique()) > 1
    start = 0
    scores = consecutive_similarity(fused.encoder(batch), 1)
    for row, length in enumerate(sorted(CASES["mixed"])):
        ids = batch.ids[start : start + length].tolist()
        start += length
        alone, layer = fused.exit(pack([ids]), limits)
        if (scores[:, row] - threshold).abs().min() > 1e-3:
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
    assert not wrong


def test_the_path_and_its_fallback() -> None:
    path = choose_path(random_encoder(*SIZES["384"]).half())
    assert isinstance(path, FusedPath)
    assert choose_path(random_encoder(*SIZES["384"])).name == "cuda eager"
    long = batch_of([200])
    expected = layer_forward(path.fused.encoder, long, 6)
    torch.testing.assert_close(path.at(long, 6), expected, atol=0, rtol=0)
