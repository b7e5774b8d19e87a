"""The families of encoders that one forward pass computes, as data: names, keys and where positions begin.

All are post-norm transformers with absolute positions (transformers, `models/<family>/modeling_<family>.py`);
MPNet adds one bias by relative position to the attention of every layer.
"""

from dataclasses import dataclass, replace
from typing import Any

# Ours to theirs. DistilBERT alone names its config otherwise.
_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "layer_norm_eps": "layer_norm_eps",
}
_EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
}
_TYPES = {"types": "embeddings.token_type_embeddings"}
_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
_QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
_NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "hidden_act": "gelu"}


@dataclass(frozen=True)
class Family:
    """How Hugging Face names and stores one family.

    model_type, architecture, prefix: in config.json, its bare model, and the prefix of the bare model's
        weights in a checkpoint with a head.
    keys: our config's names to theirs.
    activation: the key of the activation, always exact GELU.
    embeddings, layer, qkv: our modules' names to theirs; a layer's below `layers`.
    layers: the name of the list of layers.
    places_after_padding: the first token's position is pad_token_id + 1, not 0.
    relative_bias: the name of the shared bias by relative position.
    constants: the rest of a config.json without which it would not be this model.
    """

    model_type: str
    architecture: str
    prefix: str
    keys: dict[str, str]
    activation: str
    embeddings: dict[str, str]
    layers: str
    layer: dict[str, str]
    qkv: tuple[str, str, str]
    constants: dict[str, Any]
    places_after_padding: bool = False
    relative_bias: str | None = None


BERT = Family(
    model_type="bert",
    architecture="BertModel",
    prefix="bert.",
    keys={**_KEYS, "token_types": "type_vocab_size"},
    activation="hidden_act",
    embeddings={**_EMBEDDINGS, **_TYPES},
    layers="encoder.layer",
    layer=_LAYER,
    qkv=_QKV,
    constants=_NO_DROPOUT,
)
DISTILBERT = Family(
    model_type="distilbert",
    architecture="DistilBertModel",
    prefix="distilbert.",
    keys={
        "layers": "n_layers",
        "width": "dim",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    },
    activation="activation",
    embeddings=_EMBEDDINGS,
    layers="transformer.layer",
    layer={
        "attention_out": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "norm": "output_layer_norm",
    },
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    constants={"attention_dropout": 0.0, "dropout": 0.0, "activation": "gelu"},
)
MPNET = Family(
    model_type="mpnet",
    architecture="MPNetModel",
    prefix="mpnet.",
    keys={**_KEYS, "relative_buckets": "relative_attention_num_buckets"},
    activation="hidden_act",
    embeddings=_EMBEDDINGS,
    layers="encoder.layer",
    layer={**_LAYER, "attention_out": "attention.attn.o", "attention_norm": "attention.LayerNorm"},
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    constants=_NO_DROPOUT,
    places_after_padding=True,
    relative_bias="encoder.relative_attention_bias",
)
# pad_token_id, after which positions begin, is 1 in both; XLM-R's one token type is added like BERT's first.
ROBERTA = replace(
    BERT, model_type="roberta", architecture="RobertaModel", prefix="roberta.", places_after_padding=True
)
XLM_ROBERTA = replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRobertaModel")

CAMEMBERT = replace(ROBERTA, model_type="camembert", architecture="CamembertModel")

FAMILIES = {family.model_type: family for family in (BERT, DISTILBERT, MPNET, ROBERTA, XLM_ROBERTA, CAMEMBERT)}
# What transformers' own configs of these families take where config.json leaves a key out.
DEFAULTS = {"layer_norm_eps": 1e-12, "token_types": 2, "relative_buckets": 32}
