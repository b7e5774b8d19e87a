"""ExitLoss in sentence-transformers' own trainer: its terms, its gradients, and what a training does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from torch.nn import functional as F

import leap
from leap.exits import LeapEncoder


@pytest.fixture
def model(tiny_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_folder), device="cpu", local_files_only=True).eval()


def features(model: SentenceTransformer, sentences: list[str]) -> list[dict[str, torch.Tensor]]:
    return [model.preprocess(part) for part in (sentences[:6], sentences[6:12])]


def pooled(folder: Path, sentences: list[str]) -> torch.Tensor:
    encoder = LeapEncoder(folder, "cpu")
    result = torch.empty(6, len(sentences), 16)
    for rows, vectors in encoder.pooled_layers(sentences):
        result[:, rows] = vectors
    return result[1:]


def test_the_loss_is_the_wrapped_one_and_the_terms_of_all_its_texts(
    model: SentenceTransformer, tiny_folder: Path, sentences: list[str]
) -> None:
    own = MultipleNegativesRankingLoss(model)
    weights = {"beta": 0.5, "exit_contrast": 0.0, "epsilon": 0.0, "gamma": 0.0}
    total = leap.ExitLoss(model, own, **weights, tau=0.9, margin="hinge", slope=1.0)(
        features(model, sentences), None
    )
    layers = pooled(tiny_folder, sentences[:12])
    gaps = 0.4 * F.relu(0.9 - F.cosine_similarity(layers[:-1], layers[-1], dim=-1))
    expected = own(features(model, sentences), None) + 0.5 * gaps.mean()
    assert total.item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_last_layer_learns_from_the_wrapped_loss_alone(
    model: SentenceTransformer, sentences: list[str]
) -> None:
    """With the wrapped loss at zero, the last layer's own weights have a gradient of exactly zero."""

    class Nothing(torch.nn.Module):
        def forward(self, given: list[dict[str, torch.Tensor]], labels: object) -> torch.Tensor:
            return sum(model(each)["sentence_embedding"].sum() * 0 for each in given)  # type: ignore[return-value]

    leap.ExitLoss(model, Nothing(), epsilon=0.2)(features(model, sentences), None).backward()
    layers = model[0].auto_model.encoder.layer
    assert all((parameter.grad == 0).all() for parameter in layers[-1].parameters())
    assert all(parameter.grad.abs().max() > 0 for parameter in layers[-2].attention.output.dense.parameters())


def test_a_training_script_needs_one_line_more(
    tiny_folder: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_DISABLED", "true")
    near = {}
    for name in ("plain", "exits"):
        torch.manual_seed(0)
        model = SentenceTransformer(str(tiny_folder), device="cpu", local_files_only=True)
        loss = CosineSimilarityLoss(model)
        if name == "exits":
            loss = leap.ExitLoss(model, loss)
        data = {"one": sentences[:40], "two": sentences[20:], "score": np.linspace(0, 1, 40).tolist()}
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path / "run"),
            num_train_epochs=6,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        SentenceTransformerTrainer(model, arguments, Dataset.from_dict(data), loss=loss).train()
        model.save_pretrained(str(tmp_path / name), create_model_card=False)
        layers = pooled(tmp_path / name, sentences)
        near[name] = F.cosine_similarity(layers[1], layers[-1], dim=-1).mean().item()
    assert near["exits"] > near["plain"] + 0.02


def test_what_cannot_be_trained_is_said(
    model: SentenceTransformer, tiny_folder: Path, sentences: list[str]
) -> None:
    with pytest.raises(ValueError, match="beta -1 must be 0 or more"):
        leap.ExitLoss(model, CosineSimilarityLoss(model), beta=-1)
    exiting = leap.sentence_transformer(tiny_folder, device="cpu")
    with pytest.raises(TypeError, match="Transformer as the first module, not EarlyExit"):
        leap.ExitLoss(exiting, MultipleNegativesRankingLoss(exiting))(features(model, sentences), None)
    result = leap.ExitLoss(model, CosineSimilarityLoss(model)).get_config_dict()
    assert (result["loss"], result["beta"], result["margin"]) == ("CosineSimilarityLoss", 0.4, "softplus")
