"""The CUDA kernel's own source, compiled for the CPU: the same arithmetic, one block after the other."""

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from leap.exits.compiled import ARGUMENTS, definitions
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.fused import _joined, _work_space, plan_flags
from leap.exits.layouts import layout_of
from leap.exits.rules import ExitRule
from leap.exits.tiles import TileShape, tile_shape
from leap.model.batches import Batch, pack
from leap.model.encoder import Encoder, EncoderConfig

KERNEL = Path(__file__).parents[2] / "src/leap/resources/kernels/encoder.cu"
SUPPORT = Path(__file__).parents[1] / "support"
CONFIG = EncoderConfig(layers=3, width=128, heads=4, intermediate=256, vocabulary=50, positions=64)
LENGTHS = [3, 3, 5, 9, 14, 16]

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif("f16c" not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU with F16C"),
]


class OnHost:
    """FusedEncoder's launch, on the CPU."""

    def __init__(self, encoder: Encoder, shape: TileShape, folder: Path) -> None:
        library = folder / f"kernel{shape.rows16}.so"
        options = [f"-D{name}={value}" for name, value in definitions(CONFIG, shape, torch.float16).items()]
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            "-mf16c",
            "-w",
            "-shared",
            "-fPIC",
            "-DON_HOST",
            f"-I{SUPPORT}",
        ]
        subprocess.run([*command, *options, "-x", "c++", str(KERNEL), "-o", str(library)], check=True)
        self.launch = ctypes.CDLL(str(library)).launch
        self.encoder, self.shape = encoder, shape
        self.weights, self.norms = _joined(encoder)

    def run(self, batch: Batch, thresholds: list[float], patience: int, stop: int) -> tuple[Tensor, Tensor]:
        lengths = [group.length for group in batch.groups for _ in range(group.rows)]
        tiling = layout_of(lengths, self.shape, 1, 1).tiling
        rows, encoder = len(lengths), self.encoder
        inputs = [
            batch.ids,
            batch.positions,
            torch.tensor(tiling.starts, dtype=torch.int32),
            torch.tensor(tiling.rows, dtype=torch.int32),
            torch.tensor(plan_flags(thresholds, patience, stop), dtype=torch.int32),
            torch.tensor([math.inf, *thresholds]),
        ]
        tables = [encoder.words.weight, encoder.places.weight, encoder.types.weight]
        work = _work_space(encoder, len(batch.ids) + 128, rows * (patience + 1), 4)
        vectors, exits = torch.full((rows, CONFIG.width), torch.nan), torch.full((rows,), -1)
        buffers = [*inputs, *tables, self.norms, self.weights, *work.values(), vectors, exits]
        numbers = (patience, rows, len(tiling), 1, 1, stop, CONFIG.layer_norm_eps)
        arguments = ARGUMENTS.pack(*(buffer.data_ptr() for buffer in buffers), *numbers)
        self.launch(ctypes.create_string_buffer(arguments, 192), 1, self.shape.shared_bytes(CONFIG))
        assert not work["counters"].any()
        return vectors, exits


def random_encoder() -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.12)
        else:
            parameter.data += torch.randn_like(parameter) * 0.1
    return encoder


@pytest.fixture(scope="module", params=[(1, (8, 32, 8)), (4, (32, 128, 32))])
def on_host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OnHost:
    rows16, columns = request.param
    shape = tile_shape(rows16, CONFIG, columns)
    assert shape is not None
    return OnHost(random_encoder().half(), shape, tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def twin(on_host: OnHost) -> Encoder:
    """The same weights in float32."""
    encoder = Encoder(CONFIG).eval().requires_grad_(False)
    encoder.load_state_dict(on_host.encoder.state_dict())
    return encoder


@pytest.fixture(scope="module")
def batch() -> Batch:
    numbers = torch.Generator().manual_seed(1)
    return pack([torch.randint(0, 50, (n,), generator=numbers).tolist() for n in LENGTHS])


@pytest.mark.parametrize("stop", [1, 3])
def test_a_layer_equals_its_slow_twin(on_host: OnHost, twin: Encoder, batch: Batch, stop: int) -> None:
    vectors, exits = on_host.run(batch, [math.inf] * 3, 1, stop)
    torch.testing.assert_close(vectors, layer_forward(twin, batch, stop), atol=4e-3, rtol=0)
    assert exits.tolist() == [stop] * len(LENGTHS)


def test_mixed_exits_equal_the_slow_twin(on_host: OnHost, twin: Encoder, batch: Batch) -> None:
    pooled = twin(batch)
    similarity = torch.cosine_similarity(pooled[2], pooled[1], dim=-1).sort().values
    threshold = similarity[2:4].mean().item()
    expected, layers = exit_forward(twin, batch, ExitRule(threshold, 2, 1))
    assert layers.unique().tolist() == [2, 3]
    vectors, exits = on_host.run(batch, [math.inf, threshold, threshold], 1, 3)
    assert exits.tolist() == layers.tolist()
    torch.testing.assert_close(vectors, expected, atol=4e-3, rtol=0)


@pytest.mark.parametrize(("threshold", "layer"), [(-1.0, 2), (2.0, 3), (math.inf, 3)])
def test_all_leave_together(
    on_host: OnHost, twin: Encoder, batch: Batch, threshold: float, layer: int
) -> None:
    vectors, exits = on_host.run(batch, [math.inf, threshold, math.inf], 1, 3)
    assert exits.tolist() == [layer] * len(LENGTHS)
    torch.testing.assert_close(vectors, layer_forward(twin, batch, layer), atol=4e-3, rtol=0)
