"""Any sentence encoder equals sentence-transformers, layer by layer, or is refused by name; no third thing."""

import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import WORDS, tiny_tokenizer, write_modules
from torch.nn import functional as F
from transformers import AutoConfig
from zoo import ARCHITECTURES, CAUSAL, LAYERS, random_model, write_model

from leap.core.errors import UserError
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, converged
from leap.models.packed_encoder import Encoder
from leap.models.reference import ReferenceEncoder

REFUSED = {
    "xlm": "its rows cannot leave one by one",
    "fnet": "a row's vector depends on how far its batch is padded",
    "convbert": "a row's vector depends on how far its batch is padded",
    "funnel": "no hidden state of the same tokens for every layer",
}
# The norm behind the last layer, by which earlier layers are read too.
NORMS = {
    **dict.fromkeys(("qwen3", "mistral", "llama", "gemma", "gemma3_text", "eurobert"), "norm"),
    **{
        "phi": "final_layernorm",
        "gpt2": "ln_f",
        "gpt_neox": "final_layer_norm",
        "opt": "decoder.final_layer_norm",
    },
    **{"t5": "encoder.final_layer_norm", "modernbert": "final_norm", "megatron-bert": "encoder.ln"},
    "esm": "encoder.emb_layer_norm_after",
}
# MPNet too, but not with padding at another id than its own 1, as here; tests/unit/test_families.py has it so.
FAST = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")


def made_texts() -> list[str]:
    generator = random.Random(4)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 12))) for _ in range(7)]
    return [*texts, "Ka BE xyz.", "", "ka [PAD] be [MASK]", "ka " * 60]


TEXTS = made_texts()


def plain(folder: Path, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **options)


def assert_equal(model: LeapEncoder, theirs: Any, texts: list[str] = TEXTS) -> None:
    result, wanted = (encode(texts, convert_to_tensor=True).double() for encode in (_full(model), theirs.encode))
    assert result.shape == wanted.shape
    assert F.cosine_similarity(result, wanted, dim=-1).min() >= 0.9999
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-4)


def _full(model: LeapEncoder) -> Callable[..., torch.Tensor]:
    return lambda texts, **options: model.encode(texts, strategy="full", batch_size=4, **options)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of each architecture, made when it is first asked for; decoders pad at the left, as most do."""
    root = tmp_path_factory.mktemp("zoo")

    def folder(name: str) -> Path:
        made = root / name
        if not made.exists():
            write_model(made, name, side="left" if name in ("qwen3", "mistral") else "right")
            write_modules(made, "lasttoken" if name in CAUSAL else "mean_tokens", normalize=True)
        return made

    return folder


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in REFUSED])
def test_every_architecture(name: str, zoo: Callable[[str], Path]) -> None:
    model = LeapEncoder(zoo(name), "cpu")
    assert isinstance(model.encoder, Encoder if name in FAST else ReferenceEncoder)
    theirs = plain(zoo(name)) if name in FAST else model.encoder.model
    assert_equal(model, theirs)
    pooled = torch.empty(LAYERS + 1, len(TEXTS), model.width)
    for rows, vectors in model.pooled_layers(TEXTS, batch_size=4):
        pooled[:, rows] = vectors
    wanted = layers_of(theirs, name)
    assert F.cosine_similarity(pooled.double(), wanted.double(), dim=-1).min() >= 0.9999
    # Rows leave at their own layers, with the vectors that those layers give.
    rule = half_leave(pooled)
    vectors, exits = model.encode(
        TEXTS, threshold=rule.threshold, min_layer=2, patience=1, batch_size=5, return_exit_layers=True
    )
    wanted_exits = converged(pooled, rule)
    assert exits.tolist() == wanted_exits.tolist()
    assert len(set(exits.tolist())) > 1
    expected = F.normalize(at_layers(pooled, wanted_exits), dim=-1)
    assert F.cosine_similarity(torch.tensor(vectors), expected, dim=-1).min() >= 0.9999


def half_leave(pooled: torch.Tensor) -> ExitRule:
    """A rule by which some rows leave at layer 2, with no row near its threshold."""
    scores = F.cosine_similarity(pooled[2], pooled[1], dim=-1).sort().values
    gap = int(scores.diff().argmax())
    return ExitRule(scores[gap : gap + 2].mean().item(), 2, 1)


@torch.inference_mode()
def layers_of(theirs: Any, name: str) -> torch.Tensor:
    """Every layer's pooled vectors by transformers' hidden states, one text at a time, so without padding."""
    transformer = theirs[0]
    norm = transformer.auto_model.get_submodule(NORMS[name]) if name in NORMS else None
    rows = []
    for text in TEXTS:
        features = transformer.preprocess([text])
        ids = {key: features[key] for key in ("input_ids", "attention_mask")}
        hidden = list(transformer.auto_model(**ids, output_hidden_states=True).hidden_states)
        if norm is not None:
            hidden[:-1] = [norm(states) for states in hidden[:-1]]
        rows.append(torch.stack([states[0, -1] if name in CAUSAL else states[0].mean(0) for states in hidden]))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("name", ["qwen3", "albert", "t5", "modernbert", "bert"])
def test_later_layers_are_not_computed(name: str, zoo: Callable[[str], Path]) -> None:
    model = LeapEncoder(zoo(name), "cpu")
    rows: list[int] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
        for layer in dict.fromkeys(model.encoder.layers)
    ]
    model.encode(TEXTS[:6], strategy="fixed", layer=2)
    assert len(rows) == 2
    rows.clear()
    pooled = next(vectors for _, vectors in model.pooled_layers(TEXTS[:6]))
    rule = half_leave(pooled)
    rows.clear()
    model.encode(TEXTS[:6], threshold=rule.threshold, min_layer=2)
    for hook in hooks:
        hook.remove()
    assert len(rows) > 2
    assert rows[2] < rows[0]  # rows that left are not computed any further


@pytest.mark.parametrize("name", ["qwen3", "modernbert"])
def test_a_sentence_transformer_threads_and_half_precision(name: str, zoo: Callable[[str], Path]) -> None:
    import leap

    encoder = LeapEncoder(zoo(name), "cpu")
    pooled = torch.empty(LAYERS + 1, len(TEXTS), encoder.width)
    for rows, vectors in encoder.pooled_layers(TEXTS):
        pooled[:, rows] = vectors
    exits = {"threshold": half_leave(pooled).threshold, "min_layer": 2}
    expected, layers = encoder.encode(TEXTS, return_exit_layers=True, **exits)
    assert len(set(layers.tolist())) > 1
    model = leap.sentence_transformer(zoo(name), "cpu")
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=4, **exits), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS, strategy="full"), plain(zoo(name)).encode(TEXTS), atol=1e-5)
    with ThreadPoolExecutor(3) as pool:  # passes of several threads do not see each other's rows
        for results in pool.map(lambda size: encoder.encode(TEXTS, batch_size=size, **exits), (1, 2, 3, 5, 8, 11)):
            np.testing.assert_allclose(results, expected, atol=1e-5)
    narrow = LeapEncoder(zoo(name), "cpu", model_kwargs={"dtype": "bfloat16"}).encode(TEXTS, strategy="full")
    assert (narrow * encoder.encode(TEXTS, strategy="full")).sum(1).min() > 0.99


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_walked_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write_modules(write_model(tmp_path / "m", name))
    with pytest.raises(UserError, match=f"{REFUSED[name]}.*use this one by sentence-transformers, at full depth"):
        LeapEncoder(tmp_path / "m", "cpu")
    assert plain(tmp_path / "m").encode(TEXTS).shape == (len(TEXTS), 16)  # which is a way out


def test_int8_and_starts_from_single_layers_are_for_the_packed_encoder(zoo: Callable[[str], Path]) -> None:
    from tiny_settings import tiny_variant

    from leap.core.settings.training import GrownStart
    from leap.train.student import start_student

    with pytest.raises(UserError, match=r"quantize='int8' is for models of the BERT family.*leave it out"):
        LeapEncoder(zoo("qwen3"), "cpu", quantize="int8")
    grown = tiny_variant().student.model_copy(update={"start": GrownStart(kind="grow", order="stack")})
    with pytest.raises(UserError, match=r"of the BERT family only .*'qwen3'.*start from {kind: teacher}"):
        start_student(grown, zoo("qwen3"), torch.ones(len(WORDS) + 5), seed=1)


@pytest.mark.parametrize("act", ["relu", "gelu_new"])
def test_other_activations(act: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_modules(write_model(tmp_path / "m", "bert", hidden_act=act))
    with caplog.at_level("INFO", logger="leap.models.open_model"):
        model = LeapEncoder(tmp_path / "m", "cpu")
    assert "computed by transformers, not by the packed encoder" in caplog.text
    assert f"hidden_act '{act}'" in caplog.text
    assert_equal(model, plain(tmp_path / "m"))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_modules(write_model(tmp_path / "bert", "bert"))


POOLINGS = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


@pytest.mark.parametrize("mode", POOLINGS)
def test_poolings(mode: str, bert: Path) -> None:
    write_modules(bert, mode)
    assert_equal(LeapEncoder(bert, "cpu"), plain(bert))


def test_several_poolings_a_dense_layer_and_no_normalize(bert: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

    modules = [Transformer(str(bert)), Pooling(16, pooling_mode=("cls", "mean")), Dense(32, 8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(bert.parent / "dense"))
    model = LeapEncoder(bert.parent / "dense", "cpu")
    assert model.width == 8
    assert_equal(model, plain(bert.parent / "dense"))
    assert model.encode(TEXTS[:2], strategy="fixed", layer=1).shape == (2, 8)


def test_a_decoder_without_modules_json_takes_its_last_token(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "qwen3", side="left")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    assert_equal(LeapEncoder(folder, "cpu"), plain(folder))


# What is done to a BERT folder, and what is said of it.
Change = Callable[[Path], None]


def change_config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def change_weights(alter: Callable[[dict[str, torch.Tensor]], None]) -> Change:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        alter(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def without_pooling(folder: Path) -> None:
    write_modules(folder, "cls_token")
    shutil.rmtree(folder / "1_Pooling")


def in_8_bits(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if name.endswith("dense.weight")]:
        scale = weights[name].abs().max() / 127
        weights[f"{name}_scale"] = scale
        weights[name] = (weights[name] / scale).round().to(torch.int8)


def with_nan(weights: dict[str, torch.Tensor]) -> None:
    next(tensor for name, tensor in weights.items() if name.endswith("2.output.dense.weight"))[0, 0] = torch.nan


def without_a_weight(weights: dict[str, torch.Tensor]) -> None:
    del weights[next(name for name in weights if name.endswith("2.output.dense.weight"))]


def with_an_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x"}')


def with_its_own_code(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "custom_pooling.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    change_config(hidden_act="relu")(folder)


def without_the_prompt_in_the_mean(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 16, "pooling_mode_mean_tokens": true, "include_prompt": false}'
    )


def without_the_prompt_before_the_first_token(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(
        '{"word_embedding_dimension": 16, "pooling_mode_cls_token": true, "include_prompt": false}'
    )


def as_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_an_adapter_alone(folder: Path) -> None:
    with_an_adapter(folder)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def of_onnx(folder: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "model.safetensors").rename(folder / "onnx" / "model.onnx")


def of_word_vectors(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    shutil.rmtree(folder)
    SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer(), embedding_dim=16)]).save(str(folder))


def with_a_router(folder: Path) -> None:
    from sentence_transformers.models import Dense, Router

    model = plain(folder)
    model.append(Router.for_query_document([Dense(16, 8)], [Dense(16, 8)]))
    model.save(str(folder))


def change_sentence_config(**changes: Any) -> Change:
    return lambda folder: (folder / "config_sentence_transformers.json").write_text(json.dumps(changes)) and None


def of_another_class(folder: Path) -> None:
    from sentence_transformers import SparseEncoder

    SparseEncoder(str(folder), device="cpu").save(str(folder))


def change_tokenizer_config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        content = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


without_a_padding_token = change_tokenizer_config(pad_token=None)
without_a_mask = change_tokenizer_config(model_input_names=["input_ids"])
of_another_version = change_sentence_config(requirements={"sentence-transformers": ">=99"})


BAD: dict[str, tuple[Change, str]] = {
    "a lost pooling folder": (without_pooling, "names the pooling folder '1_Pooling', but .* is missing"),
    "8 bits": (change_weights(in_8_bits), "is of type I8: its weights are quantized.*dequantize"),
    "a quantization config": (change_config(quantization_config={"quant_method": "x"}), "quantization_config"),
    "NaN": (change_weights(with_nan), r"2\.output\.dense\.weight holds numbers that are not finite"),
    "a lost weight": (change_weights(without_a_weight), r"lacks? .*2\.output\.dense\.weight"),
    "an adapter": (with_an_adapter, "PEFT adapter.*merge"),
    "code of its own": (with_its_own_code, r"custom_pooling\.Pooling is code of the model's own"),
    "a prompt outside the mean": (without_the_prompt_in_the_mean, "include_prompt false"),
    "a first token behind the prompt": (without_the_prompt_before_the_first_token, "include_prompt false"),
    "a pickle": (as_a_pickle, r"no model\.safetensors.*convert it once"),
    "an adapter alone": (with_an_adapter_alone, "PEFT adapter.*merge"),
    "ONNX alone": (of_onnx, "weights for ONNX, which are not read: fetch the model from where it has safetensors"),
    "no transformer": (of_word_vectors, "first module is StaticEmbedding, no Transformer"),
    "routes": (with_a_router, r"module Router computes by what encode is given \(modality, task\)"),
    "a sparse encoder": (of_another_class, "is a SparseEncoder .*make a SentenceTransformer of its transformer"),
    "no padding token": (without_a_padding_token, "does not have a padding token.*repair .*tokenizer_config.json"),
    "a token too many": (change_tokenizer_config(cls_token="[CLX]"), r"'\[CLX\]' has id \d+, .* in tokenizer_c"),
    "no mask": (without_a_mask, "model_input_names lacks attention_mask"),
    "another version": (of_another_version, r"sentence-transformers>=99.*is installed.*install or change what it"),
    "wrong dimensions": (change_sentence_config(truncate_dim="x"), "truncate_dim 'x' is not a whole number"),
    "an unknown architecture": (
        change_config(model_type="own", auto_map={"AutoModel": "own.Own"}), "code of the model's own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("computed_by", ["packed", "reference"])
@pytest.mark.parametrize("what", BAD)
def test_odd_folders_are_refused_by_name(what: str, computed_by: str, bert: Path) -> None:
    change, message = BAD[what]
    if computed_by == "reference":
        change_config(hidden_act="relu")(bert)
    change(bert)
    with pytest.raises(UserError, match=message):
        LeapEncoder(bert, "cpu")


def test_the_ways_out_work(bert: Path, tmp_path: Path) -> None:
    """A pickle and another class are converted with their modules and prompts, as the message says."""
    write_modules(bert, "cls_token")
    with_prompts(bert)
    expected = plain(bert).encode(TEXTS)
    weights = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    torch.save(weights, bert / "pytorch_model.bin")
    converted = run_the_way_out(bert, tmp_path / "converted")
    np.testing.assert_allclose(LeapEncoder(converted, "cpu").encode(TEXTS, strategy="full"), expected, atol=1e-5)
    of_another_class(converted)
    assert_equal(LeapEncoder(run_the_way_out(converted, tmp_path / "again"), "cpu"), plain(tmp_path / "again"))


def run_the_way_out(folder: Path, target: Path) -> Path:
    with pytest.raises(UserError) as refused:
        LeapEncoder(folder, "cpu")
    code = str(refused.value).partition('python -c "')[2].rstrip('"')
    exec(code.replace("OLD FOLDER OR REPOSITORY", str(folder)).replace("NEW FOLDER", str(target)), {})
    return target


def in_shards(folder: Path) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1


def of_defaults(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key in ("layer_norm_eps", "type_vocab_size", "hidden_act"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))


def in_the_old_layout(folder: Path) -> None:
    inside = folder / "0_Transformer"
    inside.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name != "modules.json"]:
        path.rename(inside / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (inside / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')


def of_another_case(folder: Path) -> None:
    """tokenizer.json keeps capitals, tokenizer_config.json says that they are lowered."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    from transformers.models.bert import BertTokenizer

    BertTokenizer(vocab={token: n for n, token in enumerate(names)}, do_lower_case=False).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": True, "model_max_length": 32}))


def of_an_old_vocabulary(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')


def with_prompts(folder: Path) -> None:
    content = {"prompts": {"query": "bi bo ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))


def of_a_masked_language_model(folder: Path) -> None:
    """A head, its prefix, no pooler and no modules.json: the mean is the library's default."""
    from transformers import AutoModelForMaskedLM

    for path in ("model.safetensors", "modules.json"):
        (folder / path).unlink()
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    assert "bert.encoder.layer.0.output.dense.weight" in weights
    assert not any("pooler" in name for name in weights)


def with_tokens_of_another_file(folder: Path) -> None:
    """tokenizer.json knows no special tokens, tokenizer_config.json does: a text may name them."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens": []}))


def with_fewer_dimensions(folder: Path) -> None:
    change_sentence_config(truncate_dim=7)(folder)


def without_modules(folder: Path) -> None:
    """config_sentence_transformers.json alone, which sentence-transformers does not read."""
    (folder / "modules.json").unlink()
    with_prompts(folder)


DEFAULTS = "defaults left out"
GOOD: dict[str, Change] = {
    "a masked language model without a pooler": of_a_masked_language_model,
    "shards": in_shards,
    DEFAULTS: of_defaults,
    "the old layout": in_the_old_layout,
    "another case in tokenizer_config": of_another_case,
    "vocab.txt alone": of_an_old_vocabulary,
    "prompts": with_prompts,
    "special tokens in another file": with_tokens_of_another_file,
    "fewer dimensions": with_fewer_dimensions,
    "prompts without modules": without_modules,
}


# Where the defaults are left out, the activation is the packed encoder's.
READ = [(what, by) for what in GOOD for by in ("packed", "reference") if (what, by) != (DEFAULTS, "reference")]


@pytest.mark.parametrize(("what", "computed_by"), READ)
def test_odd_folders_are_read_as_their_library_reads_them(what: str, computed_by: str, bert: Path) -> None:
    if computed_by == "reference":
        change_config(hidden_act="relu")(bert)
    GOOD[what](bert)
    model = LeapEncoder(bert, "cpu")
    assert isinstance(model.encoder, Encoder if computed_by == "packed" else ReferenceEncoder)
    theirs = plain(bert)
    assert_equal(model, theirs)
    assert model.get_embedding_dimension() == theirs.get_embedding_dimension()
    for ours, wanted in (
        (model.encode_query, theirs.encode_query),
        (model.encode_document, theirs.encode_document),
    ):
        np.testing.assert_allclose(ours(TEXTS, strategy="full"), wanted(TEXTS), atol=1e-5)


def half_weights(dtype: torch.dtype) -> Change:
    """Weights of half precision, of which config.json says nothing."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "dtype"}))

    return change


def float16_weights_of_a_float32_config(folder: Path) -> None:
    half_weights(torch.float16)(folder)
    change_config(dtype="float32")(folder)


def half_shards(folder: Path) -> None:
    half_weights(torch.bfloat16)(folder)
    in_shards(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "dtype"}))


def old_key(folder: Path) -> None:
    half_weights(torch.float32)(folder)
    change_config(torch_dtype="bfloat16")(folder)


def arguments_of_sentence_transformers(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 32, "model_args": {"torch_dtype": "float16"}}'
    )


def arguments_without_modules(folder: Path) -> None:
    """sentence_bert_config.json alone, which sentence-transformers does not read."""
    arguments_of_sentence_transformers(folder)
    (folder / "modules.json").unlink()


PRECISIONS: dict[str, tuple[Change, torch.dtype]] = {
    "bfloat16 in config": (change_config(dtype="bfloat16"), torch.bfloat16),
    "float16 in config": (change_config(dtype="float16"), torch.float16),
    "the old key": (old_key, torch.bfloat16),
    "bfloat16 weights": (half_weights(torch.bfloat16), torch.bfloat16),
    "float16 weights": (half_weights(torch.float16), torch.float16),
    "shards": (half_shards, torch.bfloat16),
    "float16 weights of a float32 config": (float16_weights_of_a_float32_config, torch.float32),
    "float64 in config": (change_config(dtype="float64"), torch.float32),
    "float32 weights": (half_weights(torch.float32), torch.float32),
    "arguments": (arguments_of_sentence_transformers, torch.float16),
    "arguments without modules": (arguments_without_modules, torch.float32),
}
# How a model's own precision is found is the same for both encoders: of the reference one a form each will do.
COMPUTED = [
    *((what, "gelu") for what in PRECISIONS),
    *((what, "relu") for what in ("bfloat16 in config", "float16 weights", "float16 weights of a float32 config")),
]


@pytest.mark.parametrize(("what", "act"), COMPUTED)
def test_a_model_is_computed_in_the_precision_of_its_library(
    what: str, act: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, dtype = PRECISIONS[what]
    folder = write_modules(write_model(tmp_path / "m", "bert", hidden_act=act), normalize=False)
    change(folder)
    theirs = plain(folder)
    with caplog.at_level("WARNING", logger="leap.exits.leap_encoder"):
        model = LeapEncoder(folder, "cpu")
    assert isinstance(model.encoder, Encoder if act == "gelu" else ReferenceEncoder)
    assert model.encoder.weight.dtype == dtype
    assert theirs.dtype == (torch.float64 if what == "float64 in config" else dtype)
    assert ("model_kwargs={'dtype': 'float32'}" in caplog.text) == (dtype != torch.float32)
    assert_equal_up_to_rounding(model, theirs)


@pytest.mark.parametrize("act", ["gelu", "relu"])
@pytest.mark.parametrize(("own", "named"), [("bfloat16", "float32"), ("float32", "float16"), ("float16", "auto")])
def test_model_kwargs_name_another_precision(own: str, named: str, act: str, tmp_path: Path) -> None:
    folder = write_modules(write_model(tmp_path / "m", "bert", hidden_act=act), normalize=False)
    change_config(dtype=own)(folder)
    model = LeapEncoder(folder, "cpu", model_kwargs={"dtype": named})
    assert model.encoder.weight.dtype == getattr(torch, own if named == "auto" else named)
    assert_equal_up_to_rounding(model, plain(folder, model_kwargs={"dtype": named}))


@pytest.mark.parametrize(("name", "dtype"), [("qwen3", "bfloat16"), ("gemma", "bfloat16"), ("t5", "float16")])
def test_what_an_architecture_keeps_in_float32_stays_so(name: str, dtype: str, tmp_path: Path) -> None:
    """The frequencies of rotary positions, T5's wo: a cast of the whole model would narrow them."""
    folder = write_modules(write_model(tmp_path / "m", name), normalize=False)
    change_config(dtype=dtype)(folder)
    model, theirs = LeapEncoder(folder, "cpu"), plain(folder)
    own, wanted = (
        {key: tensor.dtype for key, tensor in [*each.named_parameters(), *each.named_buffers()]}
        for each in (model.encoder.model, theirs)
    )
    assert own == wanted
    assert set(own.values()) == {torch.float32, getattr(torch, dtype)}
    assert_equal_up_to_rounding(model, theirs)


def assert_equal_up_to_rounding(model: LeapEncoder, theirs: Any) -> None:
    """Equal to the last bit where the same modules compute the same rows, else a few roundings apart."""
    dtype = model.encoder.weight.dtype
    ours = model.encode(TEXTS, strategy="full", batch_size=1, convert_to_tensor=True)
    wanted = theirs.encode(TEXTS, batch_size=1, convert_to_tensor=True)
    assert ours.dtype == torch.float32
    if isinstance(model.encoder, ReferenceEncoder):
        assert torch.equal(ours, wanted.float())
    size = wanted.double().square().mean().sqrt()
    assert (ours.double() - wanted.double()).square().mean().sqrt() <= 4 * torch.finfo(dtype).eps * size


def test_half_precision_hides_no_layer_that_cannot_be_left(tmp_path: Path) -> None:
    for name in ("fnet", "convbert"):
        folder = write_modules(write_model(tmp_path / name, name))
        change_config(dtype="bfloat16")(folder)
        with pytest.raises(UserError, match=REFUSED[name]):
            LeapEncoder(folder, "cpu")


TOO_LARGE = {
    "embeddings.LayerNorm.weight": r"LayerNorm\.weight holds numbers that torch\.float16 cannot",
    "encoder.layer.1.intermediate.dense.weight": "vectors are finite in float32, but not in torch.float16",
}


@pytest.mark.parametrize(("name", "factor"), zip(TOO_LARGE, (1e6, 1.5e5), strict=True))
def test_a_precision_too_narrow_for_a_model_is_refused_by_name(name: str, factor: float, tmp_path: Path) -> None:
    folder = write_modules(write_model(tmp_path / "m", "bert", hidden_act="relu"))
    change_weights(lambda weights: weights[name].mul_(factor))(folder)
    change_config(dtype="float16")(folder)
    with pytest.raises(UserError, match=f"{TOO_LARGE[name]}.*open .* with model_kwargs={{'dtype': 'float32'}}"):
        LeapEncoder(folder, "cpu")
    named = {"dtype": "float32"}
    assert_equal(LeapEncoder(folder, "cpu", model_kwargs=named), plain(folder, model_kwargs=named))


def test_a_precision_that_no_vectors_have_is_refused_by_name(bert: Path) -> None:
    change_config(dtype="int8")(bert)
    with pytest.raises(UserError, match=r"config\.json: dtype 'int8' is none of float32, bfloat16 and float16"):
        LeapEncoder(bert, "cpu")
    change_config(dtype="float16")(bert)
    change_weights(lambda weights: weights["embeddings.LayerNorm.weight"].mul_(1e6))(bert)
    with pytest.raises(UserError, match=r"norm\.weight holds numbers that torch\.float16 cannot"):
        LeapEncoder(bert, "cpu")


def test_training_and_int8_are_float32_and_a_cut_model_keeps_its_precision(bert: Path, tmp_path: Path) -> None:
    from tiny_settings import tiny_variant

    from leap.core.settings.training import TeacherStart
    from leap.models.device import own_dtype
    from leap.registry.export_folder import export_truncated
    from leap.train.student import save_student, start_student

    half_weights(torch.bfloat16)(bert)
    assert LeapEncoder(bert, "cpu", quantize="int8").encoder.weight.dtype == torch.float32
    shape = {"layers": LAYERS, "width": 16, "heads": 2, "intermediate": 32, "max_length": 32}
    start = tiny_variant().student.model_copy(update={"start": TeacherStart(kind="teacher"), **shape})
    for act in ("gelu", "relu"):
        change_config(hidden_act=act)(bert)
        student, cut = tmp_path / f"student-{act}", tmp_path / f"cut-{act}"
        encoder, _ = start_student(start, bert, torch.ones(len(WORDS) + 5), seed=1)
        student.mkdir()
        save_student(encoder, student, bert, 32)
        assert encoder.weight.dtype == own_dtype(student) == plain(student).dtype == torch.float32
        expected = LeapEncoder(bert, "cpu").encode(TEXTS, strategy="fixed", layer=2)
        export_truncated(bert, 2, cut, None)
        assert own_dtype(cut) == plain(cut).dtype == torch.bfloat16
        np.testing.assert_array_equal(LeapEncoder(cut, "cpu").encode(TEXTS, strategy="full"), expected)


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_a_length_that_is_set(act: str, tmp_path: Path) -> None:
    folder = write_modules(write_model(tmp_path / "m", "bert", hidden_act=act))
    model, theirs = LeapEncoder(folder, "cpu"), plain(folder)
    assert model.max_seq_length == theirs.max_seq_length == 32
    model.max_seq_length = theirs.max_seq_length = 16
    assert len(model.tokenizer([TEXTS[-1]])[0]) == 16
    assert_equal(model, theirs)
    with pytest.raises(ValueError, match="max_seq_length 0 must be a whole number"):
        model.max_seq_length = 0


def test_a_whole_number_of_numpy_is_a_batch_size(bert: Path) -> None:
    model = LeapEncoder(bert, "cpu")
    result = model.encode(TEXTS, batch_size=np.int64(3), truncate_dim=np.int64(8))
    np.testing.assert_allclose(result, model.encode(TEXTS, batch_size=3, truncate_dim=8))


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_an_empty_text_without_tokens_costs_no_other_its_vector(act: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = write_modules(write_model(tmp_path / "m", "bert", hidden_act=act))
    tokenizer = json.loads(Tokenizer.from_file(str(folder / "tokenizer.json")).to_str())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    texts = ["ka be", "", "bi"]
    model = LeapEncoder(folder, "cpu")
    vectors, layers = model.encode(texts, return_exit_layers=True, threshold=-1, min_layer=2)
    assert layers.tolist() == [2, LAYERS, 2]
    np.testing.assert_allclose(model.encode(texts, strategy="full"), plain(folder).encode(texts), atol=1e-5)
    assert not vectors[1].any()


def test_the_comparison_is_made_once(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEAP_CACHE", str(tmp_path / "cache"))
    LeapEncoder(bert, "cpu")
    with monkeypatch.context() as patch:
        patch.setattr("leap.models.reference.open_reference", lambda *_: pytest.fail("compared again"))
        LeapEncoder(bert, "cpu")
        # The same model trained further is computed in the same way.
        change_weights(lambda weights: weights["embeddings.LayerNorm.bias"].add_(0.1))(bert)
        LeapEncoder(bert, "cpu")
    # Another configuration is another model; what does not agree is computed by transformers, and the log says so.
    monkeypatch.setattr(Encoder, "forward", lambda encoder, batch: torch.ones(LAYERS + 1, batch.rows, 16))
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-6}))
    with caplog.at_level("INFO", logger="leap.models.open_model"):
        model = LeapEncoder(bert, "cpu")
    assert isinstance(model.encoder, ReferenceEncoder)
    assert "at layer 0 its vectors have cosine" in caplog.text


def test_the_doctor_and_a_students_start_take_a_decoder_of_28_layers(tmp_path: Path) -> None:
    from tiny_settings import tiny_variant

    from leap.doctor.doctor_sentences import Sample
    from leap.doctor.examine import default_rule, examine_model
    from leap.train.student import save_student, start_student

    folder = write_model(tmp_path / "m", "qwen3", side="left", num_hidden_layers=28, layer_types=None)
    write_modules(folder, "lasttoken")
    model = LeapEncoder(folder, "cpu")
    assert model.depth == 28
    sentences = [f"{one} {two} {one}" for one in WORDS[:6] for two in WORDS[:4]]
    result = examine_model("random", model, Sample("made", sentences), default_rule(model))
    assert result["depth"] == 28
    assert result["verdict"].startswith(("never exits", "exits and is near", "exits and is far"))
    assert result["advice"]
    encoder, basis = start_student(tiny_variant().student, folder, torch.ones(len(WORDS) + 5), seed=1)
    assert basis is not None
    words = random_model("qwen3", num_hidden_layers=28, layer_types=None).get_input_embeddings().weight
    torch.testing.assert_close(encoder.words.weight, words @ basis)
    saved = tmp_path / "student"
    saved.mkdir()
    save_student(encoder, saved, folder, 24)
    assert_equal(LeapEncoder(saved, "cpu"), plain(saved))


@pytest.mark.parametrize("name", ["qwen3", "modernbert", "mpnet"])
def test_calibration_heads_predictors_and_the_monitor(
    name: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    from leap.exits.calibrate.calibrate_folder import calibrate
    from leap.exits.calibrate.fit_predictors import fit_predictors
    from leap.exits.calibrate.risk import Demand
    from leap.exits.calibration import Calibration
    from leap.serve import Monitor

    folder = tmp_path / "m"
    shutil.copytree(zoo(name), folder)
    model = LeapEncoder(folder, "cpu")
    texts = [f"{one} {two}" for one in WORDS[:20] for two in WORDS[:10]]
    result = calibrate(model, texts, Demand(0.2, 0.3, 0.8), with_heads=True, batch_size=64)
    result.save(folder)
    pooled = torch.cat([vectors for _, vectors in model.pooled_layers(texts, 64)], 1)
    fit_predictors([pooled]).save(folder)
    threshold = half_leave(pooled).threshold
    thresholds = torch.tensor([torch.inf, threshold, torch.inf, torch.inf])
    Calibration(thresholds, 1, None).save(folder, {})
    again = LeapEncoder(folder, "cpu")
    vectors, layers = again.encode(texts, strategy="calibrated", return_exit_layers=True)
    assert set(layers.tolist()) == {2, LAYERS}
    order = [row for rows, _ in model.pooled_layers(texts, 64) for row in rows]
    assert again.heads is not None
    mapped = F.normalize(pooled[2] @ again.heads.maps[1], dim=-1)[torch.tensor(order).argsort()]
    np.testing.assert_allclose(vectors[layers == 2], mapped[layers == 2], atol=1e-5)
    middle = again.predictors.scores(pooled)[1].median().item()
    _, layers = again.encode(texts, strategy="predictors", threshold=middle, min_layer=2, return_exit_layers=True)
    assert 0 < (layers == 2).sum() < len(texts)
    # The monitor counts where rows leave, and computes a sample of them to full depth.
    again.monitor = Monitor(again, tmp_path / "windows", shadow_rate=1.0)
    vectors, layers = again.encode(texts, threshold=threshold, min_layer=2, return_exit_layers=True)
    window = again.monitor.window()
    assert window.exits == tuple(np.bincount(layers, minlength=LAYERS + 1)[1:].tolist())
    full = again.encode(texts, strategy="full")
    assert window.shadowed.mean == pytest.approx(float((vectors * full).sum(1).mean()), abs=1e-5)
    assert window.to_final[-1].mean == pytest.approx(1.0, abs=1e-6)


def test_a_saved_model_loads_without_a_report_of_missing_weights(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.utils import logging as theirs

    from leap.registry.export_folder import export_truncated

    export_truncated(bert, 2, tmp_path / "cut", None)
    theirs.enable_propagation()
    with caplog.at_level("WARNING", logger="transformers"):
        cut = plain(tmp_path / "cut")
    theirs.disable_propagation()
    assert "MISSING" not in caplog.text
    result = LeapEncoder(bert, "cpu").encode(TEXTS, strategy="fixed", layer=2)
    np.testing.assert_allclose(cut.encode(TEXTS), result, atol=1e-5)


def test_a_variants_checkpoint_is_one_file_of_weights(bert: Path) -> None:
    from leap.models.saved_files import join_shards

    expected = LeapEncoder(bert, "cpu").encode(TEXTS)
    in_shards(bert)
    join_shards(bert)
    assert [path.name for path in bert.glob("*safetensors*")] == ["model.safetensors"]
    np.testing.assert_allclose(LeapEncoder(bert, "cpu").encode(TEXTS), expected, atol=1e-6)


def test_a_copy_of_the_tokenizer_says_the_models_own_length(bert: Path) -> None:
    from tokenizers import Tokenizer

    from leap.models.saved_files import save_tokenizer as save

    fixed = Tokenizer.from_file(str(bert / "tokenizer.json"))
    fixed.enable_padding(length=30)
    fixed.enable_truncation(30)
    fixed.save(str(bert / "tokenizer.json"))
    (bert.parent / "copy").mkdir()
    save(LeapEncoder(bert, "cpu").tokenizer.backend(), bert, bert.parent / "copy", 20, 0)
    alone = Tokenizer.from_file(str(bert.parent / "copy" / "tokenizer.json"))
    assert [len(row.ids) for row in alone.encode_batch(["ka", "ka be"])] == [4, 4]
    assert len(alone.encode("ka " * 60).ids) == 20
    assert json.loads((bert.parent / "copy" / "tokenizer_config.json").read_text())["model_max_length"] == 20
