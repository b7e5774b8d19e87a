"""The CUDA kernel's own source, compiled for the CPU: the same arithmetic, one block after the other."""

import ctypes
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from leap.exits.cuda.compiled import ARGUMENTS, Kernel, definitions
from leap.exits.cuda.fused import FusedEncoder
from leap.exits.cuda.layouts import layout_of
from leap.exits.cuda.tiles import TileShape, tile_shape
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.plan import Plan
from leap.exits.rules import ExitRule
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
from leap.models.packed_encoder import Encoder, EncoderConfig

KERNEL = Path(__file__).parents[2] / "src/leap/exits/cuda/encoder.cu"
SUPPORT = Path(__file__).parents[1] / "support"
CONFIG = EncoderConfig(layers=3, width=128, heads=4, intermediate=256, vocabulary=50, positions=64)
LENGTHS = [3, 3, 5, 9, 14, 16]

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif("f16c" not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU with F16C"),
]


class HostKernel:
    """`leap.exits.cuda.compiled.Kernel`, on the CPU."""

    folder: Path

    def __init__(self, config: EncoderConfig, shape: TileShape, dtype: torch.dtype, device: torch.device) -> None:
        library = self.folder / f"kernel{shape.rows16}.so"
        options = [f"-D{name}={value}" for name, value in definitions(config, shape, dtype).items()]
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
        self._launch = ctypes.CDLL(str(library)).launch
        self._shared_bytes = shape.shared_bytes(config)

    def launch(self, blocks: int, stream: int, *arguments: float) -> None:
        packed = ctypes.create_string_buffer(ARGUMENTS.pack(*arguments), ARGUMENTS.size)
        self._launch(packed, blocks, self._shared_bytes)


class OnHost:
    """A FusedEncoder whose tiles have one shape, on a device of one processor."""

    def __init__(self, encoder: Encoder, shape: TileShape) -> None:
        self.fused, self.shape = FusedEncoder(encoder), shape

    def run(
        self,
        batch: Batch,
        thresholds: list[float],
        patience: int,
        stop: int,
        heads: ExitHeads | None = None,
    ) -> tuple[Tensor, Tensor]:
        placed = self.fused.place(batch, layout_of(batch.lengths.tolist(), self.shape, 1, 1))
        return self.fused.run(placed, Plan(tuple(thresholds), patience, stop), heads)


def random_encoder() -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.12)
        else:
            parameter.data += torch.randn_like(parameter) * 0.1
    return encoder


@pytest.fixture(scope="module", params=[(1, (8, 32, 8)), (4, (32, 128, 32))], ids=["16 tokens", "64 tokens"])
def on_host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnHost]:
    shape = tile_shape(request.param[0], CONFIG, request.param[1])
    assert shape is not None
    HostKernel.folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leap.exits.cuda.fused.Kernel", HostKernel)
        processors = SimpleNamespace(multi_processor_count=1)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: processors)
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
        yield OnHost(random_encoder().half(), shape)


@pytest.fixture(scope="module")
def reference(on_host: OnHost) -> Encoder:
    """The same weights in float32."""
    encoder = Encoder(CONFIG).eval().requires_grad_(False)
    encoder.load_state_dict(on_host.fused.encoder.state_dict())
    return encoder


@pytest.fixture(scope="module")
def batch() -> Batch:
    numbers = torch.Generator().manual_seed(1)
    return pack([torch.randint(0, 50, (n,), generator=numbers).tolist() for n in LENGTHS])


@pytest.mark.parametrize("stop", [1, 3])
def test_a_layer_equals_the_reference_implementation(
    on_host: OnHost, reference: Encoder, batch: Batch, stop: int
) -> None:
    vectors, exits = on_host.run(batch, [math.inf] * 3, 1, stop)
    torch.testing.assert_close(vectors, layer_forward(reference, batch, stop), atol=4e-3, rtol=0)
    assert exits.tolist() == [stop] * len(LENGTHS)


def test_mixed_exits_equal_the_reference_implementation(on_host: OnHost, reference: Encoder, batch: Batch) -> None:
    pooled = reference(batch)
    similarity = torch.cosine_similarity(pooled[2], pooled[1], dim=-1).sort().values
    threshold = similarity[2:4].mean().item()
    expected, layers = exit_forward(reference, batch, ExitRule(threshold, 2, 1))
    assert layers.unique().tolist() == [2, 3]
    vectors, exits = on_host.run(batch, [math.inf, threshold, threshold], 1, 3)
    assert exits.tolist() == layers.tolist()
    torch.testing.assert_close(vectors, expected, atol=4e-3, rtol=0)


@pytest.mark.parametrize(("threshold", "stop"), [(-1.0, 3), (0.5, 3), (2.0, 3), (math.inf, 2), (math.inf, 3)])
def test_exited_rows_are_mapped_by_their_layers_heads(
    on_host: OnHost, reference: Encoder, batch: Batch, threshold: float, stop: int
) -> None:
    if threshold == 0.5:  # half of the rows
        pooled = reference(batch)
        threshold = torch.cosine_similarity(pooled[2], pooled[1], dim=-1).sort().values[2:4].mean().item()
    heads = ExitHeads(torch.eye(128) + 0.1 * torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(3)))
    limits = [math.inf, threshold, math.inf]
    vectors, exits = on_host.run(batch, limits, 1, stop)
    mapped, layers = on_host.run(batch, limits, 1, stop, heads)
    assert layers.tolist() == exits.tolist()
    torch.testing.assert_close(mapped, heads.at_exits(vectors, exits))
    assert torch.equal(mapped[exits == 3], vectors[exits == 3])
    assert not torch.isclose(mapped[exits == 2], vectors[exits == 2]).all(1).any()


@pytest.mark.parametrize(("threshold", "layer"), [(-1.0, 2), (2.0, 3), (math.inf, 3)])
def test_all_leave_together(
    on_host: OnHost, reference: Encoder, batch: Batch, threshold: float, layer: int
) -> None:
    vectors, exits = on_host.run(batch, [math.inf, threshold, math.inf], 1, 3)
    assert exits.tolist() == [layer] * len(LENGTHS)
    torch.testing.assert_close(vectors, layer_forward(reference, batch, layer), atol=4e-3, rtol=0)


def test_patience_and_batches_of_other_sizes_in_the_same_work_space(on_host: OnHost, reference: Encoder) -> None:
    large = pack([[number % 50] * 12 for number in range(7)])
    vectors, exits = on_host.run(large, [-1.0] * 3, 2, 3)
    assert exits.tolist() == [3] * 7
    torch.testing.assert_close(vectors, layer_forward(reference, large, 3), atol=4e-3, rtol=0)
    small = pack([[7, 8, 9]])
    vectors, exits = on_host.run(small, [-1.0] * 3, 1, 3)
    assert exits.tolist() == [2]
    torch.testing.assert_close(vectors, layer_forward(reference, small, 2), atol=4e-3, rtol=0)
    (work,) = on_host.fused._work.values()
    assert not work["counters"].any()


def test_the_launch_hands_over_the_arguments_as_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def launched(*arguments: int) -> tuple[SimpleNamespace]:
        assert arguments[1:8] == (96, 1, 1, 256, 1, 1, 1000)
        assert arguments[8] == 5
        address = ctypes.cast(arguments[9], ctypes.POINTER(ctypes.c_void_p))[0]
        seen.append(ctypes.string_at(address, ARGUMENTS.size))
        return (SimpleNamespace(value=len(seen) - 1, name="CUDA_ERROR_LAUNCH_FAILED"),)

    kernel = Kernel.__new__(Kernel)
    kernel._prepare(SimpleNamespace(cuLaunchCooperativeKernel=launched), 1000)
    kernel._function = None
    numbers = (*range(1, 30), 1e-12)
    kernel.launch(96, 5, *numbers)
    assert seen == [ARGUMENTS.pack(*numbers)]
    with pytest.raises(RuntimeError, match="LAUNCH_FAILED"):
        kernel.launch(96, 5, *numbers)
