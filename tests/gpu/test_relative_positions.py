"""A whole encoder with MPNet's bias by relative position: packed on a GPU against groups of equal length.

Without a GPU, `TRITON_INTERPRET=1` runs the first tests' kernels on a CPU where Triton is installed.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_encoders import KINDS, assert_same_exits, batch_of, cosine, plan_for, random_encoder, spread_rule
from safetensors.torch import load_file, save_file
from tiny_models import write_modules
from tiny_settings import tiny_variant
from torch import Tensor
from triton_device import DEVICE, MARKS
from zoo import write_model

from leap.core.project import Project
from leap.core.settings.sources import LocalModel
from leap.exits import LeapEncoder
from leap.exits.cuda.graphs import GraphEncoder, unsupported
from leap.exits.forward import exit_forward
from leap.exits.plan import fixed_plan
from leap.models.batches import Batch
from leap.models.kernels import varlen
from leap.models.locate import locate
from leap.models.packed_encoder import Encoder
from leap.train.teacher import build_cache, write_online
from leap.train.train_student import train_student

on_card = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
pytestmark = MARKS

# Triton's interpreter computes no products of bfloat16.
NARROW = torch.float16 if DEVICE == "cpu" else torch.bfloat16
# Layers, width, heads: two heads of 64, and four of 32.
SHAPES = [(2, 128, 2), (2, 128, 4)]
BIAS = "encoder.relative_attention_bias.weight"
LENGTHS = [1, 2, 15, 16, 17, 40, 65, 130]


@pytest.fixture(autouse=True)
def kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(varlen, "available", lambda _: True)
        monkeypatch.setattr(varlen, "handles", lambda qkv, _: qkv.dtype != torch.float32)


def in_groups(encoder: Encoder, batch: Batch) -> Tensor:
    """Every layer's pooled vectors by groups of equal length, in the encoder's own precision."""
    moved = batch.map(lambda part: part.to(encoder.weight.device))
    pooled: Tensor = encoder(replace(moved, offsets=None, longest=0))
    return pooled


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_training_equals_groups_of_equal_length(shape: tuple[int, int, int]) -> None:
    encoder = random_encoder(*shape, DEVICE, relative_buckets=32).requires_grad_(True)
    reference = random_encoder(*shape, "cpu", relative_buckets=32).double().requires_grad_(True)
    batch = batch_of(LENGTHS, device=DEVICE)
    assert batch.offsets is not None
    packed = replace(batch, groups=())  # as the trainer packs: no groups to fall back to
    with torch.autocast(DEVICE, NARROW, cache_enabled=False):
        result = encoder(packed)
    wanted = in_groups(reference, batch)
    assert cosine(result.flatten(0, 1), wanted.flatten(0, 1)) > 0.999
    direction = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (result * direction.to(DEVICE)).sum().backward()
    (wanted * direction).sum().backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        expected = theirs[name].grad
        assert expected is not None
        if name.endswith("qkv.bias"):  # a key's bias moves no softmax
            expected.chunk(3)[1].zero_()
            parameter.grad.chunk(3)[1].zero_()
        assert cosine(parameter.grad.reshape(1, -1), expected.reshape(1, -1)) > 0.99, name
    assert any(name.endswith("relative.table.weight") for name in theirs)


@pytest.mark.parametrize("kind", ["float16"] if DEVICE == "cpu" else KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_inference_equals_groups_of_equal_length(shape: tuple[int, int, int], kind: str) -> None:
    dtype, _, least = KINDS[kind]
    encoder = random_encoder(*shape, DEVICE, relative_buckets=32).to(dtype)
    reference = random_encoder(*shape, "cpu", relative_buckets=32)
    batch = batch_of(LENGTHS, device=DEVICE)
    with torch.inference_mode():
        result, wanted = encoder(batch), in_groups(reference, batch)
        assert cosine(result.flatten(0, 1), wanted.flatten(0, 1)) >= least
        encoder.layers[0].relative.table.weight.zero_()
        assert cosine(encoder(batch)[-1], wanted[-1]) < least, "the bias is too weak to be missed"


@on_card
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[14], [3, 9, 30, 64], [5, 70, 128, 200, 250], [20] * 300])
def test_graphs_equal_groups_of_equal_length_at_each_exit(lengths: list[int], kind: str) -> None:
    dtype, tolerance, least = KINDS[kind]
    encoder = random_encoder(4, 768, 12, relative_buckets=32).to(dtype)
    assert unsupported(encoder) is None
    reference = random_encoder(4, 768, 12, "cpu", relative_buckets=32)
    batch = batch_of(lengths)
    with torch.inference_mode():
        wanted = in_groups(reference, batch)
        graphs = GraphEncoder(encoder)
        for layer in range(1, 5):
            for _ in range(3):  # plain calls, the capture, a replay
                vectors, exits = graphs.run(batch, fixed_plan(layer, 4))
                assert exits.tolist() == [layer] * batch.rows
                assert cosine(vectors, wanted[layer]) >= least
        if batch.rows > 8:
            rule = spread_rule(encoder, batch, 2)
            pooled, expected = encoder(batch), exit_forward(encoder, batch, rule)
            graphs.always = True  # rows that stay move into smaller buffers
            for _ in range(3):
                assert_same_exits(graphs.run(batch, plan_for(rule, 4)), expected, pooled, rule, tolerance, least)


@pytest.fixture
def mpnet(tmp_path: Path) -> Path:
    """Four layers of width 128 with heads of 64; padding is token 1, as MPNet's code has it in any case."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "pad_token_id": 1}
    folder = write_modules(write_model(tmp_path / "mpnet", "mpnet", **sizes), width=128)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {"[UNK]": 0, "[PAD]": 1}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    weights = load_file(folder / "model.safetensors")
    weights[BIAS].normal_(0, 1, generator=torch.Generator().manual_seed(0))  # strong enough to be missed
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@on_card
def test_an_mpnet_runs_by_graphs(mpnet: Path, sentences: list[str]) -> None:
    wanted = LeapEncoder(mpnet, "cpu")
    model = LeapEncoder(mpnet, "cuda", model_kwargs={"dtype": "float16"})
    assert [fast.name for fast in model.paths.fast] == ["graphs"]
    for layer in (1, 2, 3, 4):
        options: dict[str, Any] = {"strategy": "fixed", "layer": layer}
        for batch_size in (1, 7, 60):
            vectors = torch.as_tensor(model.encode(sentences, batch_size=batch_size, **options))
            assert cosine(vectors, torch.as_tensor(wanted.encode(sentences, **options))) > 0.9995
    assert [fast.name for fast in model.paths.fast] == ["graphs"], "a path was refused"


@on_card
@pytest.mark.parametrize("online", [False, True])
def test_a_captured_training_of_an_mpnet_goes_like_the_plain_one(
    tmp_path: Path, mpnet: Path, sentences: list[str], online: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A retrofit: the student has the teacher's weights and shape, and so its bias, which is trained."""
    caplog.set_level("INFO")
    teacher = LocalModel(kind="local", path=str(mpnet))
    student = {"width": 128, "heads": 2, "intermediate": 256, "start": {"kind": "teacher"}}
    lines: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for captured, noted in lines.items():
        root = tmp_path / str(captured)
        if online:
            write_online(root / "cache", locate(teacher), sentences, [0, 1, 2, 3, 4], 32)
        else:
            build_cache(root / "cache", locate(teacher), sentences, [0, 1, 2, 3, 4], 32, "cuda")
        settings = {"device": "cuda", "precision": "bf16", "epochs": 4, "learning_rate": 1e-3, "compile": captured}
        variant = tiny_variant(train=settings, student=student)
        place = Project(root).checkpoint("tiny", 1)
        train_student(variant, teacher, 1, sentences, root / "cache", place, lambda _, line: noted.append(line))  # noqa: B023
    assert "one CUDA graph" in caplog.text
    for ours, theirs in zip(lines[True], lines[False], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
    before = load_file(mpnet / "model.safetensors")[BIAS]
    moves = []
    for captured in lines:
        saved = Project(tmp_path / str(captured)).checkpoint("tiny", 1).student / "model.safetensors"
        moves.append((load_file(saved)[BIAS] - before).reshape(1, -1))
    assert moves[0].norm() > 1e-3
    assert cosine(*moves) > 0.7
