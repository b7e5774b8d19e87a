"""Files that tell transformers and sentence-transformers how to read a folder that we save."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from leap.core.errors import UserError
from leap.models.families import Family
from leap.models.folder import INDEX, WEIGHTS, ModelFolder, own_dimensions, read_json_file
from leap.models.tokenizer import FILE

# Next to tokenizer.json, which is written; the last three are RoBERTa's and XLM-R's.
COPIED = ("special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model")
# A pooler makes no sentence vector here, so none is saved; without this line loading reports it as missing.
WITHOUT_POOLER = {"model_args": {"add_pooling_layer": False}}


def model_arguments(family: Family) -> dict[str, Any]:
    """Return how sentence-transformers is to load a family's own model; for sentence_bert_config.json."""
    return {} if family.model_type == "distilbert" else WITHOUT_POOLER


def sentence_config(source: Path) -> dict[str, Any]:
    """Return config_sentence_transformers.json of a new model, with what the one before says of its vectors."""
    own = ModelFolder.read(source).sentence_config
    dimensions = own_dimensions(source)
    return {
        "model_type": "SentenceTransformer",
        "prompts": own.get("prompts") or {"query": "", "document": ""},
        "default_prompt_name": own.get("default_prompt_name"),
        "similarity_fn_name": own.get("similarity_fn_name") or "cosine",
        **({} if dimensions is None else {"truncate_dim": dimensions}),
    }


def join_shards(folder: Path) -> None:
    """Make one model.safetensors of a folder's shards, in place: a checkpoint's identity is one file's hash.

    Raises:
        UserError: the transformer lies in a folder of its own, where a checkpoint's weights are not looked for.
    """
    layout = ModelFolder.read(folder)
    if layout.transformer.resolve() != folder.resolve():
        raise UserError(
            f"{folder}: its weights lie in {layout.transformer.name}/, an old layout that a variant's checkpoint "
            "cannot have: save it again with sentence-transformers: SentenceTransformer(OLD).save('NEW FOLDER')"
        )
    shards = layout.weights
    if len(shards) < 2:
        return
    tensors = {name: tensor for path in shards for name, tensor in load_file(path).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    for path in (*shards, folder / INDEX):
        path.unlink()


def save_tokenizer(tokenizer: Tokenizer, source: Path, target: Path, max_length: int, pad_token: int) -> None:
    """Copy a model's tokenizer, made to cut at another length and to pad to the longest row of a batch.

    A tokenizer.json may hold a length of its own and padding to a fixed one, which programs that read nothing
    else would follow. `tokenizer` is a copy of it, which is changed; `source` the model's folder.
    """
    inside = ModelFolder.read(source).transformer
    for name in COPIED:
        if (inside / name).exists():
            shutil.copyfile(inside / name, target / name)
    path = inside / "tokenizer_config.json"
    config = read_json_file(path) if path.is_file() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer.enable_truncation(max_length, direction=config.get("truncation_side", "right"))
    token = tokenizer.id_to_token(pad_token)
    if token is not None:
        tokenizer.enable_padding(pad_id=pad_token, pad_token=token)
        config.setdefault("pad_token", token)
    config["padding_side"] = (
        "right"  # positions are absolute, whatever the model was that had the tokenizer before
    )
    tokenizer.save(str(target / FILE))
    for key in ("max_length", "pad_to_multiple_of", "stride", "truncation_strategy", "name_or_path"):
        config.pop(key, None)
    text = json.dumps(config | {"model_max_length": max_length}, indent=2, ensure_ascii=False)
    (target / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
