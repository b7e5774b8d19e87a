"""The rival `adaptive_layer`: sentence-transformers' own loss on our layers, alone and in a training."""

import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_evidence import EMBEDDED
from ruamel.yaml import YAML
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, EmbedDistillLoss
from test_objective import LAYERS, ROWS, STORED, TEACHER_WIDTH, WIDTH, vectors
from tiny_models import MakeFolder
from tiny_settings import ADAPTIVE, TINY, tiny_variant
from torch import Tensor, nn

from leap.core.project import Project
from leap.core.settings import parse_settings
from leap.core.settings.sources import LocalModel
from leap.core.settings.training import AdaptiveLayerSettings
from leap.core.stage import Run
from leap.exits import LeapEncoder
from leap.models.locate import locate
from leap.models.packed_encoder import Encoder
from leap.models.tokenizer import SentenceTokenizer
from leap.train.objective import objective, terms
from leap.train.objective.adaptive_layer import AdaptiveLayer
from leap.train.step import Step
from leap.train.student import save_student
from leap.train.teacher import build_cache, open_teacher
from leap.train.tokens import TokenizedText
from leap.train.trainer import Trainer
from train import train

TEXTS = ["da go", "fa go ke", "li mo nu pa re", "so"]


def adaptive(seed: int = 0, layers: int = LAYERS, **changes: Any) -> AdaptiveLayer:
    torch.manual_seed(0)
    settings = AdaptiveLayerSettings.model_validate(ADAPTIVE | changes)
    made = objective(settings, layers, WIDTH, TEACHER_WIDTH, seed=seed)
    assert isinstance(made, AdaptiveLayer)
    return made


def trained_layers(loss: AdaptiveLayer, progress: float) -> list[int]:
    """The layers that one step gives a gradient."""
    pooled = vectors(loss.layers + 1, ROWS, WIDTH).requires_grad_()
    loss(pooled, vectors(4, ROWS, TEACHER_WIDTH, seed=1), STORED, torch.tensor(progress))[0].backward()
    assert pooled.grad is not None
    layers: list[int] = pooled.grad.abs().sum((1, 2)).nonzero().flatten().tolist()
    return layers


@contextmanager
def forward_calls() -> Iterator[Counter[type]]:
    """How often a module of each class is called within the block."""
    calls: Counter[type] = Counter()
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.update([type(module)]))
    try:
        yield calls
    finally:
        hook.remove()


class Base(nn.Module):
    """Our distillation loss in the library's form: it calls the model and compares with the teacher."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: list[dict[str, Tensor]], labels: Tensor) -> Tensor:
        embedded = self.model(features[0])["sentence_embedding"]
        return terms.final_loss(embedded, labels) + 0.3 * terms.contrastive_loss(embedded, labels, 0.15)


@pytest.mark.parametrize(("weighting", "drawn"), [("uniform", -1), ("log", -1), ("linear", -1), ("log", 2)])
def test_the_same_loss_and_gradient_as_the_loss_of_the_library_on_the_saved_model(
    make_folder: MakeFolder, weighting: Literal["uniform", "log", "linear"], drawn: int
) -> None:
    """From pooled vectors, as the trainer has them, as from the student's folder opened by the library."""
    arguments: dict[str, Any] = {
        "n_layers_per_step": drawn,
        "layer_weighting": weighting,
        "last_layer_weight": 0.7,
        "prior_layers_weight": 0.9,
        "kl_div_weight": 1.3,
        "kl_temperature": 0.2,
    }
    plain = make_folder()
    folder = plain / "as_saved"
    folder.mkdir()
    save_student(Encoder.load(plain), folder, plain, 32)
    model = SentenceTransformer(str(folder), device="cpu").eval()
    features = model.preprocess(TEXTS)
    width = model.get_embedding_dimension()
    assert width is not None
    teacher = vectors(len(TEXTS), width, seed=3)
    random.seed("7 0.5")  # the draw of a training with seed 7, half way through
    expected = AdaptiveLayerLoss(model, Base(model), **arguments)([dict(features)], teacher)
    expected.backward()
    gradients = {name: given.grad.clone() for name, given in model.named_parameters() if given.grad is not None}
    assert len(gradients) > 60

    model.zero_grad()
    inputs = {key: features[key] for key in ("input_ids", "attention_mask")}
    states = model[0].auto_model(**inputs, output_hidden_states=True).hidden_states
    mask = features["attention_mask"][..., None].float()
    pooled = torch.stack([(state * mask).sum(1) / mask.sum(1) for state in states])
    settings = AdaptiveLayerSettings.model_validate(ADAPTIVE | arguments)
    loss = AdaptiveLayer(settings, len(states) - 1, width, width, seed=7)
    value, _ = loss(pooled, teacher[None], [9], 0.5)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-3, atol=1e-6)


def test_the_library_computes_the_loss_with_the_arguments_of_the_settings() -> None:
    weights: dict[str, Any] = {"last_layer_weight": 0.7, "prior_layers_weight": 0.9, "kl_div_weight": 1.3}
    arguments = {"n_layers_per_step": 2, **weights}
    loss = adaptive(**arguments, kl_temperature=0.2, layer_weighting="log")
    assert type(loss.library) is AdaptiveLayerLoss
    shown = loss.library.get_config_dict()
    assert shown | arguments | {"kl_temperature": 0.2, "layer_weighting": "log"} == shown
    with forward_calls() as calls:
        trained_layers(loss, 0.5)
    assert calls[AdaptiveLayerLoss] == 1
    assert calls[type(loss.base)] == 3  # the last layer and the two that were drawn
    assert isinstance(loss.base, EmbedDistillLoss)


def test_a_step_trains_the_projection_the_final_layer_and_one_that_is_drawn() -> None:
    loss = adaptive(kl_div_weight=0.0)
    steps = [trained_layers(loss, place / 20) for place in range(20)]
    assert all(len(layers) == 2 for layers in steps)
    assert all(layers[-1] == LAYERS for layers in steps)
    assert {layers[0] for layers in steps} == {0, 1, 2, 3}  # the embeddings too
    gradient = loss.projection.get_parameter("weight").grad
    assert gradient is not None
    assert (gradient != 0).any()
    assert [parameter.shape for parameter in loss.parameters()] == [(TEACHER_WIDTH, WIDTH)]


def test_all_layers_are_trained_where_none_is_drawn() -> None:
    assert trained_layers(adaptive(n_layers_per_step=-1), 0.5) == list(range(LAYERS + 1))


def test_the_kl_term_trains_no_final_layer() -> None:
    only = adaptive(last_layer_weight=0.0, prior_layers_weight=0.0, n_layers_per_step=-1)
    assert trained_layers(only, 0.5) == list(range(LAYERS))


def test_the_draw_follows_from_seed_and_place_and_leaves_pythons_generator_as_it_was() -> None:
    places = [place / 12 for place in range(12)]
    first, again, other = (
        [trained_layers(loss, place) for place in places] for loss in (adaptive(1), adaptive(1), adaptive(2))
    )
    assert first == again
    assert first != other
    before = random.getstate()
    later = [trained_layers(adaptive(1), place) for place in places[6:]]  # as after a resume
    assert later == first[6:]
    assert random.getstate() == before


def test_terms_are_those_of_the_final_layer_and_the_mean_over_the_drawn_ones() -> None:
    pooled, teacher = vectors(LAYERS + 1, ROWS, WIDTH), vectors(4, ROWS, TEACHER_WIDTH, seed=1)
    loss = adaptive(n_layers_per_step=-1, kl_temperature=0.0)
    value, parts = loss(pooled, teacher, STORED, 0.5)
    projected = loss.projection(pooled)
    near = [terms.final_loss(layer, teacher[-1]).item() for layer in projected]
    alike = [terms.contrastive_loss(layer, teacher[-1], 0.15).item() for layer in pooled]
    prior = np.mean([one + 0.3 * other for one, other in zip(near[:-1], alike[:-1], strict=True)])
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(
        {"final": near[-1], "contrast": alike[-1], "prior": prior}, rel=1e-5
    )
    assert value.item() == pytest.approx(near[-1] + 0.3 * alike[-1] + prior, rel=1e-5)
    assert not any(part.requires_grad for part in parts.values())
    assert set(adaptive(delta=0.0)(pooled, teacher, STORED, 0.5)[1]) == {"final", "prior"}


def test_the_contrastive_term_compares_the_sentences_of_all_processes() -> None:
    settings = AdaptiveLayerSettings.model_validate(ADAPTIVE)
    pooled, teacher = vectors(LAYERS + 1, 6, WIDTH), vectors(4, 6, WIDTH, seed=1)
    joint = AdaptiveLayer(settings, LAYERS, WIDTH, WIDTH)(pooled, teacher, STORED, 0.5)[1]
    calls: list[Tensor] = []

    def gather(mine: Tensor) -> Tensor:
        """The vectors of two processes; the second has the other half of the batch."""
        calls.append(mine)
        whole = teacher[-1] if torch.equal(mine, teacher[-1, :3]) else nn.functional.normalize(pooled[-1], dim=-1)
        return torch.cat([mine, whole[3:]])

    half = AdaptiveLayer(settings, LAYERS, WIDTH, WIDTH, gather)(pooled[:, :3], teacher[:, :3], STORED, 0.5)[1]
    assert half["contrast"].item() == pytest.approx(joint["contrast"].item(), rel=1e-5)
    assert len(calls) == 4  # student's and teacher's, of the final layer and of the drawn one


class Training:
    """The tiny variant with the library's loss, trained by the stage `train` in the working folder."""

    def __init__(self, tiny_folder: Path, sentences: list[str]) -> None:
        content = YAML(typ="safe").load(EMBEDDED.read_text())
        own = {name: TINY[name] for name in ("student", "train", "exit")}
        content |= {
            "teacher": {"kind": "local", "path": str(tiny_folder)},
            "variants": {"adaptive_layer": {"description": "theirs", "loss": ADAPTIVE, **own}},
            "studies": {},
        }
        content["gate"] |= {"baseline": None, "fixed_depth": None}
        content["tracking"] |= {"enabled": False}
        settings = parse_settings(content, "test")
        self.run = Run(settings, Project(), "adaptive_layer", 1)
        self.run.project.sentences.parent.mkdir(parents=True)
        pq.write_table(pa.table({"sentence": sentences}), self.run.project.sentences)
        build_cache(self.run.project.teacher, locate(settings.teacher), sentences, [5], 32, "cpu")

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.run.checkpoint.student / "model.safetensors")


@pytest.fixture
def training(tmp_path: Path, tiny_folder: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.chdir(tmp_path)
    return Training(tiny_folder, sentences)


def test_the_stage_trains_by_the_loss_of_the_library_and_a_resumed_training_ends_alike(training: Training) -> None:
    with forward_calls() as calls:
        result = train(training.run)
    assert calls[AdaptiveLayerLoss] == result["steps"] == 18
    record = training.run.checkpoint.training / "history.jsonl"
    history = [json.loads(line) for line in record.read_text().splitlines()]
    assert {"loss", "loss_final", "loss_contrast", "loss_prior"} <= history[0].keys()
    assert history[-1]["loss"] < history[0]["loss"]
    assert LeapEncoder(training.run.checkpoint.student, "cpu").depth == 4
    whole = training.weights()

    (training.run.checkpoint.training / "training.json").unlink()
    (training.run.checkpoint.student / "model.safetensors").unlink()
    steps = 0

    def stop(module: nn.Module, *_: Any) -> None:
        nonlocal steps
        steps += isinstance(module, AdaptiveLayerLoss)
        if steps == 7 and isinstance(module, AdaptiveLayerLoss):
            signal.raise_signal(signal.SIGTERM)

    hook = nn.modules.module.register_module_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        train(training.run)
    hook.remove()
    random.seed(5)  # another process, in which Python's generator is somewhere else
    with forward_calls() as calls:
        train(training.run)
    assert calls[AdaptiveLayerLoss] == 18 - 7
    resumed = training.weights()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_step_is_not_captured(training: Training, tiny_folder: Path, sentences: list[str]) -> None:
    variant = tiny_variant(loss=ADAPTIVE)
    text = TokenizedText.of(sentences, SentenceTokenizer(tiny_folder, 32))
    cpu = torch.device("cpu")
    source = locate(LocalModel(kind="local", path=str(tiny_folder)))
    teacher = open_teacher(training.run.project.teacher, sentences, source, cpu, "fp32")
    given = variant.train, text, sentences, teacher, 1, cpu
    trainer = Trainer(Encoder.load(tiny_folder), adaptive(layers=5), *given)
    trainer.packed = True  # as on a card, where another objective's step would be compiled
    assert isinstance(trainer.prepare()[0], Step)
