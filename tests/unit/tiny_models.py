"""Tiny random models, built by the tests themselves: none needs a model from outside."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from leap.models.packed_encoder import Encoder, EncoderConfig

WORDS = [f"{start}{end}" for start in "bdfgklmnprst" for end in ("a", "e", "i", "o", "u")]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

MakeFolder = Callable[..., Path]


def tiny_tokenizer() -> Tokenizer:
    """Whole words, with BERT's special tokens round them."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def write_folder(folder: Path, layers: int = 5, width: int = 16, seed: int = 0, normalize: bool = False) -> Path:
    """A model folder as Hugging Face and LeapEncoder load it."""
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    config = EncoderConfig(
        layers=layers,
        width=width,
        heads=2,
        intermediate=2 * width,
        vocabulary=len(SPECIAL) + len(WORDS),
        positions=32,
    )
    Encoder(config).save(folder)
    save_tokenizer(folder)
    return write_modules(folder, width=width, normalize=normalize)


def save_tokenizer(folder: Path, **changes: Any) -> None:
    """The tokenizer of whole words, as transformers saves it."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32, **special, **changes}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


def write_modules(folder: Path, pooling: str = "mean_tokens", width: int = 16, normalize: bool = True) -> Path:
    """Make a sentence-transformers model of a plain folder."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    content = {
        "word_embedding_dimension": width,
        "pooling_mode_mean_tokens": False,
        f"pooling_mode_{pooling}": True,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
    return folder
