"""Tiny random models of many architectures, saved by their own libraries."""

from pathlib import Path
from typing import Any

import torch
from tiny_models import WORDS, save_tokenizer

VOCABULARY = len(WORDS) + 5
LAYERS = 4

_BASE = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32}
_GROUPED = {**_BASE, "num_key_value_heads": 1, "head_dim": 8}
# Each architecture's own names of its sizes.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": _BASE,
    "roberta": _BASE,
    "xlm-roberta": _BASE,
    "camembert": _BASE,
    "mpnet": _BASE,
    "distilbert": {"dim": 16, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 32},
    "electra": {**_BASE, "embedding_size": 8},
    "albert": {**_BASE, "embedding_size": 8},
    "deberta-v2": {
        **_BASE,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": 8,
    },
    "deberta": _BASE,
    "modernbert": {**_BASE, "global_attn_every_n_layers": 2, "local_attention": 8},
    "nomic_bert": _BASE,
    "ernie": _BASE,
    "megatron-bert": _BASE,
    "rembert": {**_BASE, "input_embedding_size": 8, "output_embedding_size": 8},
    "roformer": {**_BASE, "embedding_size": 16},
    "convbert": {**_BASE, "embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3},
    "esm": {**_BASE, "position_embedding_type": "rotary", "mask_token_id": 4},
    "fnet": _BASE,
    "eurobert": _GROUPED,
    "qwen3": _GROUPED,
    "mistral": _GROUPED,
    "llama": _GROUPED,
    "gemma": _GROUPED,
    "gemma3_text": {**_GROUPED, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "phi": _BASE,
    "gpt2": {"n_embd": 16, "n_layer": LAYERS, "n_head": 2, "n_positions": 64},
    "gpt_neox": _BASE,
    "opt": {**_BASE, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": LAYERS, "num_heads": 2},
    "funnel": {
        **{"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "hidden_size": 16},
        **{"block_sizes": [2, 2], "num_decoder_layers": 1, "architectures": ["FunnelModel"]},
    },
    "xlm": {"emb_dim": 16, "n_layers": LAYERS, "n_heads": 2},
}
CAUSAL = ("qwen3", "mistral", "llama", "gemma", "phi", "gpt2", "gpt_neox", "opt")


def random_model(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A model of transformers whose every parameter is random: as initialised, biases are 0 and norms 1."""
    from transformers import AutoConfig, AutoModel, T5EncoderModel

    sizes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "max_position_embeddings": 40}
    config = AutoConfig.for_model(architecture, **{**sizes, **ARCHITECTURES[architecture], **changes})
    torch.manual_seed(seed)
    model = T5EncoderModel(config) if architecture == "t5" else AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def write_model(folder: Path, architecture: str, seed: int = 0, side: str = "right", **changes: Any) -> Path:
    """A plain Hugging Face folder."""
    folder.mkdir(parents=True)
    save_tokenizer(folder, padding_side=side)
    random_model(architecture, seed, **changes).save_pretrained(folder)
    return folder
