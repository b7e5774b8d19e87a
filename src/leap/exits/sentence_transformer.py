"""A `SentenceTransformer` that exits: for evaluators, mteb, LangChain and whatever else takes one.

    model = leap.sentence_transformer("models/leap-1")
    vectors = model.encode_query(["a query"])                       # the folder's rule decides how deep
    vectors = model.encode(["a text"], strategy="full")             # LeapEncoder.encode's arguments work
    layers = [each["exit_layer"] for each in model.encode(["a text"], output_value=None)]

`SentenceTransformer(folder)` loads the same weights without exits, and trains: this one is for inference only.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from leap.core.errors import UserError
from leap.exits.leap_encoder import LeapEncoder
from leap.models.batches import pack


class EarlyExit(InputModule):
    """Tokenizer, transformer and pooling in one module, computed by `LeapEncoder`."""

    # Arguments of `SentenceTransformer.encode` that reach `forward`.
    forward_kwargs = {
        *("strategy", "threshold", "min_layer", "patience", "layer", "pabee_patience", "max_layer", "task")
    }

    def __init__(self, encoder: LeapEncoder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leap = encoder
        self.encoder = encoder.encoder

    @property
    def max_seq_length(self) -> int:
        return self.leap.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.leap.max_seq_length = length

    @property
    def tokenizer(self) -> Any:  # type: ignore[override]
        return self.leap.tokenizer

    def get_embedding_dimension(self) -> int:
        return self.leap.width

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **ignored: Any) -> dict[str, Tensor]:
        return self.leap.tokenize([f"{prompt or ''}{text}" for text in inputs])

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Compute `sentence_embedding` [B, D] and `exit_layer` [B].

        Raises:
            UserError: gradients are asked for.
        """
        if self.training and torch.is_grad_enabled():
            raise UserError(
                f"a model that exits is not trained: load {self.leap.folder} by SentenceTransformer(...) and give "
                "its loss to leap.ExitLoss"
            )
        ids = features["input_ids"]
        if ids.device != self.leap.device:
            self.leap.to(str(ids.device))
        lengths = features["attention_mask"].sum(1).cpu()
        order = lengths.argsort(stable=True)
        filled = order[lengths[order] > 0]
        vectors = torch.zeros(len(ids), self.leap.width, device=ids.device)
        layers = torch.full((len(ids),), self.leap.depth)
        if len(filled):
            rows = ids.cpu()
            batch = pack([rows[row, : lengths[row]].tolist() for row in filled.tolist()]).to(ids.device)
            leave = self.leap.leave_by(input_type=options.pop("task", None), **options)
            vectors[filled.to(ids.device)], layers[filled] = leave(batch)
        return {**features, "sentence_embedding": vectors, "exit_layer": layers.to(ids.device)}

    def save(self, output_path: str, *arguments: Any, **options: Any) -> None:
        shutil.copytree(self.leap.folder, output_path, dirs_exist_ok=True)


class ExitingSentenceTransformer(SentenceTransformer):
    def save(self, path: str, *arguments: Any, **options: Any) -> None:
        """Write the folder that the model came from, with its present prompts and length.

        `SentenceTransformer(path)`, `LeapEncoder(path)` and `leap.sentence_transformer(path)` load it.
        """
        module = cast(EarlyExit, self[0])
        target = Path(path)
        if target.resolve() != module.leap.folder.resolve():
            module.save(path)
        config = self._get_model_config()
        config.pop("model_type", None)  # the folder's modules are the plain ones
        _update(target / "config_sentence_transformers.json", config)
        if module.max_seq_length != LeapEncoder(target, "cpu").max_seq_length:
            _update(target / "sentence_bert_config.json", {"max_seq_length": module.max_seq_length})


def sentence_transformer(
    model_name_or_path: str | Path, device: str | None = None, **options: Any
) -> SentenceTransformer:
    """Load a model folder as a `SentenceTransformer` that leaves layers early; arguments as of `LeapEncoder`.

    Raises:
        UserError: the model cannot be had, is incomplete, or is not one that the encoder computes.
    """
    encoder = LeapEncoder(model_name_or_path, device, **options)
    modules: list[nn.Module] = [EarlyExit(encoder), *([Normalize()] if encoder.normalizes else [])]
    return ExitingSentenceTransformer(
        modules=modules,
        device=str(encoder.device),
        prompts=dict(encoder.prompts.named),
        default_prompt_name=encoder.prompts.default,
        similarity_fn_name=encoder.similarity_fn_name,
        truncate_dim=encoder.truncate_dim,
    )


def _update(path: Path, changes: dict[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}, indent=2) + "\n", encoding="utf-8")
