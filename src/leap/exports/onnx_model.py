"""A checkpoint cut after a layer, in ONNX: token ids and mask in, sentence vectors out."""

import contextlib
import io
import shutil
import tempfile
import warnings
from pathlib import Path

from leap.errors import UserError
from leap.exports.folders import BESIDE, CARD, derived_card, must_be_new, write_truncated
from leap.files import whole_folder

MODEL = "model.onnx"


def export_onnx(source: Path, layers: int, target: Path, card: str | None) -> None:
    """Writes `model.onnx` beside its tokenizer.

    Inputs `input_ids` and `attention_mask`, both [batch, tokens] int64 with any batch and length; output
    `sentence_embedding`, [batch, width] float32, pooled and normalised as the folder's modules say: the
    vectors of LeapEncoder with strategy="fixed" at that layer.

    Args:
        source: the checkpoint's folder.
        layers: K, how many are kept.
        target: must not exist.
        card: the checkpoint's card, from which the new one takes licence and origin.

    Raises:
        UserError: the target exists, the model has fewer layers, or onnx and onnxscript are not installed.
    """
    must_be_new(target)
    try:
        import onnxscript  # noqa: F401  (the exporter needs it, and says so late and at length)
    except ImportError:
        raise UserError("onnx and onnxscript are missing: pip install 'leap-pipeline[export]'") from None
    with tempfile.TemporaryDirectory() as scratch, whole_folder(target) as beside:
        cut = Path(scratch)
        write_truncated(source, layers, cut)
        convert(cut, beside / MODEL)
        for pattern in (*BESIDE, "config.json"):
            for found in cut.glob(pattern):
                if found.is_file() and found.name != "modules.json":
                    shutil.copyfile(found, beside / found.name)
        (beside / CARD).write_text(derived_card(source, layers, card, "model in ONNX"), encoding="utf-8")


def convert(folder: Path, target: Path, dtype: str = "float32") -> None:
    """One sentence-transformers folder to one ONNX file, with the inputs and the output of `export_onnx`.

    Args:
        folder: the model's.
        target: the file.
        dtype: of its weights.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    eager = {"attn_implementation": "eager", "dtype": dtype}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs=eager, local_files_only=True)

    class Vectors(torch.nn.Module):
        """The model with its inputs and its output named one by one."""

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
