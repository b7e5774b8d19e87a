"""A checkpoint as folders that other programs load: whole, or cut after a layer."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import must_be_new, whole_folder
from leap.models.device import own_dtype
from leap.models.exit_heads import ExitHeads
from leap.models.folder import ModelFolder, hash_weights
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.models.saved_files import model_arguments, save_tokenizer
from leap.models.tokenizer import folder_max_length, lowers_case
from leap.registry.card import front_matter, with_front_matter

CARD = "README.md"
# An exit head as a module of its own.
DENSE = "exit_head_Dense"
# What a sentence-transformers folder has next to config.json and the weights. What speaks of exits (leap.json
# and the files bound to these weights) means nothing in a model of another depth.
COMPANIONS = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model"),
    *("modules.json", "sentence_*.json", "config_sentence_transformers.json", "[0-9]*_*"),
)


def export_whole(source: Path, target: Path, card: str | None) -> None:
    """Export a sentence-transformers folder, which LeapEncoder and Hugging Face load too, to a new target."""
    must_be_new(target)
    with whole_folder(target) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        if card is not None:
            (temporary / CARD).write_text(card, encoding="utf-8")


def export_truncated(source: Path, layers: int, target: Path, card: str | None) -> None:
    """The first layers as a model of their own, for servers without early exit.

    Its vectors are those of LeapEncoder with strategy="fixed" at that layer; the layer's exit head, where the
    model has heads, becomes a Dense module. Hugging Face, sentence-transformers and text-embeddings-inference
    load it like any model.

    `card` is the checkpoint's, from which the new one takes licence and origin.

    Raises:
        UserError: the target exists, or the model has fewer layers.
    """
    must_be_new(target)
    with whole_folder(target) as temporary:
        write_truncated(source, layers, temporary, own_dtype(source))
        (temporary / CARD).write_text(derived_card(source, layers, card, "cut model"), encoding="utf-8")


def write_truncated(source: Path, layers: int, target: Path, dtype: torch.dtype) -> None:
    """Write the first layers of a model into an empty folder, in that precision; see `export_truncated`."""
    opened = open_model(source, dtype=dtype)
    shape = opened.encoder.config
    if not 1 <= layers <= shape.layers:
        raise UserError(f"{source} has {shape.layers} layers, {layers} were asked for")
    if isinstance(opened.encoder, Encoder):
        _write_packed(source, Encoder.load(source, layers).to(dtype), opened.tokenizer.backend(), target)
    else:
        opened.encoder.first_layers(layers).save(target)
    heads = ExitHeads.load(source, shape.layers, shape.width)
    if heads is not None and layers < shape.layers:
        add_dense(target, heads.maps[layers - 1])


def _write_packed(source: Path, encoder: Encoder, tokenizer: Tokenizer, target: Path) -> None:
    transformer = ModelFolder.read(source).transformer
    for pattern in COMPANIONS:
        for found in source.glob(pattern):
            if found.is_dir() and found != transformer:
                shutil.copytree(found, target / found.name)
            elif found.is_file():
                shutil.copyfile(found, target / found.name)
    inside = target / transformer.relative_to(source)
    inside.mkdir(exist_ok=True)
    encoder.save(inside)
    length = folder_max_length(source)
    save_tokenizer(tokenizer, source, inside, length, encoder.config.pad_token)
    config = {
        "max_seq_length": length,
        "do_lower_case": lowers_case(source),
        **model_arguments(encoder.config.family),
    }
    (inside / "sentence_bert_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def add_dense(folder: Path, head: Tensor) -> None:
    """Make an exit head, [D, D], the folder's last Dense module, before a final Normalize: p becomes p @ head."""
    path = folder / "modules.json"
    modules = json.loads(path.read_text(encoding="utf-8"))
    place = len(modules) - modules[-1]["type"].endswith(".Normalize")  # behind a Dense module of the model's own
    dense = {"name": DENSE, "path": DENSE, "type": "sentence_transformers.models.Dense"}
    modules = [{**module, "idx": idx} for idx, module in enumerate([*modules[:place], dense, *modules[place:]])]
    path.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    width = len(head)
    config = {
        "in_features": width,
        "out_features": width,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / DENSE).mkdir()
    (folder / DENSE / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({"linear.weight": head.T.contiguous()}, folder / DENSE / "model.safetensors")


def derived_card(source: Path, layers: int, card: str | None, what: str) -> str:
    """Return the card of a form without exits: origin and licence of the checkpoint's card, none of its scores."""
    front: dict[str, Any] = {key: value for key, value in front_matter(card or "").items() if key != "model-index"}
    front.setdefault("library_name", "sentence-transformers")
    front.setdefault("pipeline_tag", "sentence-similarity")
    return with_front_matter(
        front,
        f"# The first {layers} layers of a LEAP model\n\n"
        f"A {what} without exits, made from weights with sha256 `{hash_weights(source)}`. "
        f"Its vectors are those that the whole model gives at layer {layers}.",
    )
