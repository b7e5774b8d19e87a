"""The adaptive-layer rival against sentence-transformers' own AdaptiveLayerLoss, on a tiny model."""

from typing import Any, Literal

import pytest
import torch
from test_objective import ADAPTIVE, LAYERS, ROWS, STORED, TEACHER_WIDTH, WIDTH, vectors
from tiny_models import MakeFolder
from torch import Tensor, nn

from leap.models.packed_encoder import Encoder
from leap.train.objective import AdaptiveLayer, terms
from leap.train.objective.adaptive_layer import DRAWS, kl_to_final, prior_weights
from leap.train.student import save_student

SENTENCES = ["da go", "fa go ke", "li mo nu pa re", "so"]


class Base(nn.Module):
    """Our distillation loss in the library's form: it calls the model and compares with the teacher."""

    def __init__(self, model: nn.Module, teacher: Tensor) -> None:
        super().__init__()
        self.model, self.teacher = model, teacher

    def forward(self, features: list[dict[str, Tensor]], labels: Any) -> Tensor:
        vectors_ = self.model(features[0])["sentence_embedding"]
        alike = terms.contrastive_loss(vectors_, self.teacher, ADAPTIVE.tau_c)
        return terms.final_loss(vectors_, self.teacher) + ADAPTIVE.delta * alike


@pytest.mark.parametrize(("weighting", "drawn"), [("uniform", None), ("log", None), ("linear", None), ("log", 2)])
def test_the_same_loss_and_gradient_as_the_library(
    make_folder: MakeFolder,
    monkeypatch: pytest.MonkeyPatch,
    weighting: Literal["uniform", "log", "linear"],
    drawn: int | None,
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss

    changes = {
        "layers_per_step": drawn,
        "layer_weighting": weighting,
        "last_layer_weight": 0.7,
        "prior_layers_weight": 0.9,
        "kl_div_weight": 1.3,
    }
    plain = make_folder()
    folder = plain / "as_saved"
    folder.mkdir()
    save_student(Encoder.load(plain), folder, plain, 32)
    model = SentenceTransformer(str(folder), device="cpu").eval()
    features = model.preprocess(SENTENCES)
    width = model.get_embedding_dimension()
    assert width is not None
    depth = model[0].auto_model.config.num_hidden_layers
    loss = AdaptiveLayer(ADAPTIVE.model_copy(update=changes), depth, width, width)
    # The library draws by Python's own generator, which a CUDA graph cannot: it is given our draw of this step.
    step = loss.drawn[int(0.5 * len(loss.drawn))].tolist()
    monkeypatch.setattr("random.sample", lambda layers, count: [layer for layer in step if layer in layers])
    teacher = vectors(len(SENTENCES), width, seed=3)
    library = AdaptiveLayerLoss(
        model,
        Base(model, teacher),
        n_layers_per_step=-1 if drawn is None else drawn,
        last_layer_weight=0.7,
        prior_layers_weight=0.9,
        kl_div_weight=1.3,
        kl_temperature=0.3,
        layer_weighting=weighting,
    )
    expected = library([dict(features)], torch.zeros(len(SENTENCES)))
    expected.backward()
    gradients = {name: given.grad.clone() for name, given in model.named_parameters() if given.grad is not None}
    assert len(gradients) > 60

    model.zero_grad()
    states = (
        model[0]
        .auto_model(**{key: features[key] for key in ("input_ids", "attention_mask")}, output_hidden_states=True)
        .hidden_states
    )
    mask = features["attention_mask"][..., None].float()
    pooled = torch.stack([(state * mask).sum(1) / mask.sum(1) for state in states])
    value, parts = loss(pooled, teacher[None], [9], 0.5)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert set(parts) == {"final", "contrast", "prior", "kl"}
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-3, atol=1e-6)


def test_kl_to_final_by_hand() -> None:
    layer, final = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 5.0]])  # unit: (1, 0) and (0, 1)
    high = torch.tensor(1 / 0.3).sigmoid().item()
    expected = high / 0.3 - (1 - high) / 0.3  # log-odds 1/0.3, held the wrong way round
    assert kl_to_final(layer, final, 0.3).item() == pytest.approx(expected, rel=1e-5)
    assert kl_to_final(layer, layer, 0.3).item() == pytest.approx(0.0, abs=1e-7)


def test_the_final_layer_is_a_target_of_the_kl_term_and_gets_no_gradient_from_it() -> None:
    settings = ADAPTIVE.model_copy(update={"last_layer_weight": 0.0, "prior_layers_weight": 0.0})
    pooled = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_()
    loss = AdaptiveLayer(settings.model_copy(update={"layers_per_step": None}), LAYERS, WIDTH, TEACHER_WIDTH)
    loss(pooled, vectors(4, ROWS, TEACHER_WIDTH, seed=1), STORED, 0.5)[0].backward()
    assert pooled.grad is not None
    assert (pooled.grad[-1] == 0).all()
    assert (pooled.grad[:-1].abs().sum((1, 2)) > 0).all()  # the embedding layer too


def test_a_step_trains_the_final_layer_and_one_other() -> None:
    loss = AdaptiveLayer(ADAPTIVE, LAYERS, WIDTH, TEACHER_WIDTH)
    trained = []
    for progress in (0.0, 0.1, 0.5, 0.999999, 1.0):
        pooled = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_()
        loss(pooled, vectors(4, ROWS, TEACHER_WIDTH, seed=1), STORED, progress)[0].backward()
        assert pooled.grad is not None
        moved = pooled.grad.abs().sum((1, 2)).nonzero().flatten().tolist()
        assert moved[-1] == LAYERS
        assert len(moved) == 2
        trained.append(moved[0])
    assert len(set(trained)) > 1


def test_layers_are_drawn_alike_often_and_never_twice_in_a_step() -> None:
    loss = AdaptiveLayer(ADAPTIVE.model_copy(update={"layers_per_step": 2}), 12, WIDTH, WIDTH)
    counts = loss.drawn.flatten().bincount(minlength=12) / (2 * DRAWS)
    assert ((counts - 1 / 12).abs() < 2e-3).all()
    assert (loss.drawn[:, 0] != loss.drawn[:, 1]).all()


def test_prior_weights_by_hand() -> None:
    linear = ADAPTIVE.model_copy(update={"layer_weighting": "linear"})
    logarithmic = ADAPTIVE.model_copy(update={"layer_weighting": "log"})
    assert prior_weights(ADAPTIVE, 3).tolist() == [1.0, 1.0, 1.0]
    assert prior_weights(linear, 3).tolist() == pytest.approx([1.0, 1 / 2, 1 / 3])
    assert prior_weights(logarithmic, 3).tolist() == pytest.approx([1.0, 0.590616, 0.476505], rel=1e-5)
