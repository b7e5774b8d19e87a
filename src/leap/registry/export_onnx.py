"""A checkpoint cut after a layer, in ONNX: token ids and mask in, sentence vectors out."""

import logging
import shutil
import tempfile
from pathlib import Path

import torch

from leap.core.errors import UserError
from leap.core.files import must_be_new, whole_folder
from leap.models.device import own_dtype
from leap.models.onnx_graph import convert
from leap.models.open_reference import first_line
from leap.registry.export_folder import CARD, COMPANIONS, derived_card, write_truncated

log = logging.getLogger(__name__)

MODEL = "model.onnx"


def export_onnx(source: Path, layers: int, target: Path, card: str | None) -> None:
    """Write `model.onnx` next to its tokenizer.

    Inputs `input_ids` and `attention_mask`, both [batch, tokens] int64 with any batch and length; output
    `sentence_embedding`, [batch, width] float32, pooled and normalised as the folder's modules say: the
    vectors of LeapEncoder with strategy="fixed" at that layer. Computed in float32 whatever the folder says: many
    CPU kernels of ONNX runtimes know no half precision.

    Args:
        source: the checkpoint's folder.
        layers: K, how many are kept.
        target: must not exist.
        card: the checkpoint's card, from which the new one takes licence and origin.

    Raises:
        UserError: the target exists, the model has fewer layers, PyTorch exports no such architecture, or onnx and
            onnxscript are not installed.
    """
    must_be_new(target)
    try:
        import onnxscript  # noqa: F401  (the exporter needs it, and says so late and at length)
    except ImportError:
        raise UserError("onnx and onnxscript are missing: pip install 'leap-pipeline[export]'") from None
    with tempfile.TemporaryDirectory() as scratch, whole_folder(target) as temporary:
        cut = Path(scratch)
        write_truncated(source, layers, cut, torch.float32)
        if (dtype := own_dtype(source)) != torch.float32:
            log.warning(
                "%s is computed in %s, the ONNX model in float32: LeapEncoder gives the same vectors with "
                "model_kwargs={'dtype': 'float32'}",
                *(source, dtype),
            )
        try:
            convert(cut, temporary / MODEL)
        except Exception as error:  # noqa: BLE001 - whatever an operation that ONNX does not have makes it raise
            raise UserError(
                f"{source}: PyTorch's exporter makes no ONNX of this architecture ({first_line(error)}): export "
                "it with --to truncated"
            ) from None
        for pattern in (*COMPANIONS, "config.json"):
            for path in cut.glob(pattern):
                if path.is_file() and path.name != "modules.json":
                    shutil.copyfile(path, temporary / path.name)
        (temporary / CARD).write_text(derived_card(source, layers, card, "model in ONNX"), encoding="utf-8")
