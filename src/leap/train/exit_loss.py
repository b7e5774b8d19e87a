"""L_exit as a loss modifier for sentence-transformers, as its AdaptiveLayerLoss is one.

    loss = MultipleNegativesRankingLoss(model)
    loss = leap.ExitLoss(model, loss)
    SentenceTransformerTrainer(model, args, train_dataset, loss=loss).train()

The saved folder is the model it was: `LeapEncoder(folder)` exits on it, `leap calibrate` tests where.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import uses_gradient_cache
from sentence_transformers.base.model import BaseModel
from torch import Tensor, nn

from leap.train.objective import terms


class ExitLoss(nn.Module):
    """A loss of the last layer, plus what makes the layers before it fit to exit at.

    L = loss + beta L_exit + exit_contrast L_contrast + epsilon L_late + gamma L_redund, of the terms in
    `leap.train.objective.terms`: the student's half of the paper's objective (section 3.2). Each layer's pooled
    vectors are held against the last layer's, whose gradient is stopped, since the wrapped loss says what the
    last layer is to be. Vectors are pooled by the model's own modules after the transformer.

    Requirements: the model's first module is a Transformer; the wrapped loss back-propagates in one piece (no
    `Cached...` loss, nor MegaBatchMarginLoss by mini-batches).
    """

    def __init__(
        self,
        model: Any,
        loss: nn.Module,
        *,
        beta: float = 0.4,
        exit_contrast: float = 0.3,
        epsilon: float = 0.0,
        gamma: float = 0.0,
        tau: float = 0.98,
        tau_c: float = 0.15,
        margin: terms.Margin = "softplus",
        slope: float = 10.0,
        late_from: int | None = None,
        redundancy_clip: float = 0.3,
    ) -> None:
        """Wrap a loss.

        Args:
            model: the SentenceTransformer that is trained.
            loss: its loss, for example MultipleNegativesRankingLoss.
            beta: weight of the exit loss.
            exit_contrast: weight of the divergence between the batch's similarities at a layer and at the last.
            epsilon: weight of the late loss.
            gamma: weight of the redundancy term.
            tau: threshold of the margin.
            tau_c: temperature of the contrastive term.
            margin: softplus, whose slope does not vanish far from the threshold, as in a model that was trained
                without exits; or sigmoid (the paper's), hinge.
            slope: of the margin.
            late_from: the first layer of the late loss, counted from 1; half the depth if None.
            redundancy_clip: the longest step between layers that is rewarded.

        Raises:
            ValueError: a weight is negative, or the margin is unknown.
        """
        super().__init__()
        weights = {"beta": beta, "exit_contrast": exit_contrast, "epsilon": epsilon, "gamma": gamma}
        for name, weight in weights.items():
            if not weight >= 0:
                raise ValueError(f"{name} {weight!r} must be 0 or more")
        if margin not in ("sigmoid", "softplus", "hinge"):
            raise ValueError(f"margin {margin!r} is none of sigmoid, softplus, hinge")
        if uses_gradient_cache(loss):
            warnings.warn(
                f"ExitLoss sees nothing of {type(loss).__name__}, which back-propagates in pieces", stacklevel=2
            )
        self.model, self.loss, self.weights = model, loss, weights
        self.tau, self.tau_c, self.margin, self.slope = tau, tau_c, margin, slope
        self.late_from, self.redundancy_clip = late_from, redundancy_clip

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Compute the wrapped loss and the exit terms of all texts that it encoded."""
        model = unwrap(self.model)
        with all_layers(model) as captured:
            total: Tensor = self.loss(sentence_features, labels)
        batches = [pooled_layers(model, features) for features in captured]
        for name, value in self.exit_terms(torch.cat(batches, dim=1)).items():
            total = total + self.weights[name] * value
        return total

    def exit_terms(self, pooled: Tensor) -> dict[str, Tensor]:
        """Compute the terms that have a weight, each before it, from the pooled layers 1 to L, [L, B, D]."""
        pooled = pooled.float()
        early, final = pooled[:-1], pooled[-1].detach()
        wanted = {name for name, weight in self.weights.items() if weight > 0}
        weighted: dict[str, Tensor] = {}
        if not len(early):
            return weighted
        if "beta" in wanted:
            uniform = torch.ones(len(early), device=pooled.device)
            weighted["beta"] = terms.exit_loss(
                early, final, uniform, tau=self.tau, kind=self.margin, slope=self.slope
            )
        if "exit_contrast" in wanted and pooled.shape[1] > 1:
            each = [terms.contrastive_loss(layer, final, self.tau_c) for layer in early]
            weighted["exit_contrast"] = torch.stack(each).mean()
        late_from = self.late_from or max(1, len(pooled) // 2)
        if "epsilon" in wanted and late_from < len(pooled):
            weighted["epsilon"] = terms.late_loss(pooled[late_from - 1 : -1], final)
        if "gamma" in wanted:
            weighted["gamma"] = terms.redundancy_loss(pooled, self.redundancy_clip)
        return weighted

    def get_config_dict(self) -> dict[str, Any]:
        """Describe the loss for a tracker and the model card."""
        return {
            "loss": type(self.loss).__name__,
            **self.weights,
            "tau": self.tau,
            "tau_c": self.tau_c,
            "margin": self.margin,
            "slope": self.slope,
            "late_from": self.late_from,
        }


def unwrap(model: Any) -> Any:
    """Return the SentenceTransformer within DistributedDataParallel and torch.compile.

    Raises:
        TypeError: there is none, or its first module is not a transformer with layers.
    """
    while not isinstance(model, BaseModel):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            raise TypeError(f"ExitLoss needs a SentenceTransformer, not {type(model).__name__}")
        model = inner
    if not hasattr(model[0], "auto_model"):
        raise TypeError(f"ExitLoss needs a Transformer as the first module, not {type(model[0]).__name__}")
    return model


@contextmanager
def all_layers(model: Any) -> Iterator[list[dict[str, Any]]]:
    """Collect what the transformer returns within the block, every layer's token embeddings included."""
    captured: list[dict[str, Any]] = []
    config = model[0].auto_model.config
    before = config.output_hidden_states
    hook = model[0].register_forward_hook(lambda module, inputs, output: captured.append(dict(output)))
    config.output_hidden_states = True
    try:
        yield captured
    finally:
        config.output_hidden_states = before
        hook.remove()


def pooled_layers(model: Any, features: dict[str, Any]) -> Tensor:
    """Return the sentence vectors of every layer, [L, B, D], by the modules after the transformer.

    The last one is what the wrapped loss saw, since `all_layer_embeddings` may leave out a final norm.
    """
    modules = list(model.children())[1:]
    layers = [*features["all_layer_embeddings"][1:-1], features["token_embeddings"]]
    vectors = []
    for tokens in layers:
        state = {**features, "token_embeddings": tokens}
        for module in modules:
            state = module(state)
        vectors.append(state["sentence_embedding"])
    return torch.stack(vectors)
