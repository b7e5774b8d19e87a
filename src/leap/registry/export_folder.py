"""A checkpoint as folders that other programs load: whole, or cut after a layer."""

import json
import shutil
from pathlib import Path
from typing import Any

from leap.core.files import must_be_new, whole_folder
from leap.models.folder import ModelFolder, hash_weights
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder
from leap.models.saved_files import model_arguments, save_tokenizer
from leap.models.tokenizer import folder_max_length, lowers_case
from leap.registry.card import front_matter, with_front_matter

CARD = "README.md"
# What a sentence-transformers folder has next to config.json and the weights. What speaks of exits (leap.json
# and the files bound to these weights) means nothing in a model of another depth.
BESIDE = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model"),
    *("modules.json", "sentence_*.json", "config_sentence_transformers.json", "[0-9]*_*"),
)


def export_whole(source: Path, target: Path, card: str | None) -> None:
    """The checkpoint as a sentence-transformers folder, which is also what LeapEncoder and Hugging Face load.

    Raises:
        UserError: the target exists.
    """
    must_be_new(target)
    with whole_folder(target) as temporary:
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        if card is not None:
            (temporary / CARD).write_text(card, encoding="utf-8")


def export_truncated(source: Path, layers: int, target: Path, card: str | None) -> None:
    """The first layers as a model of their own, for servers without early exit.

    Its vectors are those of LeapEncoder with strategy="fixed" at that layer. Hugging Face,
    sentence-transformers and text-embeddings-inference load it like any model.

    Args:
        source: the checkpoint's folder.
        layers: K, how many are kept.
        target: must not exist.
        card: the checkpoint's card, from which the new one takes licence and origin.

    Raises:
        UserError: the target exists, or the model has fewer layers.
    """
    must_be_new(target)
    with whole_folder(target) as temporary:
        write_truncated(source, layers, temporary)
        (temporary / CARD).write_text(derived_card(source, layers, card, "cut model"), encoding="utf-8")


def write_truncated(source: Path, layers: int, target: Path) -> None:
    """The first layers of a model, into an empty folder; see `export_truncated`.

    Raises:
        UserError: the model has fewer layers.
    """
    encoder = Encoder.load(source, layers)
    transformer = ModelFolder.read(source).transformer
    for pattern in BESIDE:
        for found in source.glob(pattern):
            if found.is_dir() and found != transformer:
                shutil.copytree(found, target / found.name)
            elif found.is_file():
                shutil.copyfile(found, target / found.name)
    inside = target / transformer.relative_to(source)
    inside.mkdir(exist_ok=True)
    encoder.save(inside)
    length = folder_max_length(source)
    tokenizer = open_model(source).tokenizer.backend()
    save_tokenizer(tokenizer, source, inside, length, encoder.config.pad_token)
    config = {
        "max_seq_length": length,
        "do_lower_case": lowers_case(source),
        **model_arguments(encoder.config.family),
    }
    (inside / "sentence_bert_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def derived_card(source: Path, layers: int, card: str | None, what: str) -> str:
    """The card of a form without exits: origin and licence of the checkpoint's card, none of its scores."""
    front: dict[str, Any] = {key: value for key, value in front_matter(card or "").items() if key != "model-index"}
    front.setdefault("library_name", "sentence-transformers")
    front.setdefault("pipeline_tag", "sentence-similarity")
    return with_front_matter(
        front,
        f"# The first {layers} layers of a LEAP model\n\n"
        f"A {what} without exits, made from weights with sha256 `{hash_weights(source)}`. "
        f"Its vectors are those that the whole model gives at layer {layers}.",
    )
