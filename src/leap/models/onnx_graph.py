"""A sentence-transformers folder as one ONNX file: token ids and mask in, sentence vectors out."""

import contextlib
import io
import warnings
from pathlib import Path


def convert(folder: Path, target: Path, dtype: str = "float32") -> None:
    """Convert one sentence-transformers folder to one ONNX file, with `export_onnx`'s inputs and output."""
    import torch
    from sentence_transformers import SentenceTransformer

    eager = {"attn_implementation": "eager", "dtype": dtype}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=eager, local_files_only=True)

    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            vectors: torch.Tensor = self.model(features)["sentence_embedding"]
            return vectors

    # Two rows of different lengths: a dimension of 1 would be taken for fixed.
    ids = torch.ones(2, 6, dtype=torch.int64)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Vectors().eval(),
            (ids, mask),
            target,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            dynamic_shapes={"input_ids": {0: batch, 1: tokens}, "attention_mask": {0: batch, 1: tokens}},
            # One file up to ONNX's limit of 2 GiB.
            external_data=False,
            dynamo=True,
            verbose=False,
        )
