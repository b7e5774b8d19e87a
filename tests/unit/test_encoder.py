import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MakeFolder

from leap.core.errors import UserError
from leap.models.batches import pack
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.models.tokenizer import SentenceTokenizer

ROWS = [[2, 9, 3], [2, 5, 6, 3], [2, 30, 31, 3], [2, 7, 8, 9, 10, 11, 12, 3]]


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_every_layer_is_that_of_transformers(tiny_folder: Path) -> None:
    from transformers import BertModel

    theirs = BertModel.from_pretrained(tiny_folder, add_pooling_layer=False, dtype=torch.float32).eval()
    with torch.inference_mode():
        ours = Encoder.load(tiny_folder)(pack(ROWS))
        for number, row in enumerate(ROWS):
            output = theirs(torch.tensor([row]), output_hidden_states=True)
            expected = torch.stack([states[0].mean(0) for states in output.hidden_states])
            torch.testing.assert_close(ours[:, number], expected, atol=1e-5, rtol=0)


def test_transformers_finds_every_weight(tiny_folder: Path) -> None:
    from transformers import BertModel

    _, info = BertModel.from_pretrained(tiny_folder, add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_save_and_load_is_the_same_model(tiny_folder: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny_folder)
    encoder.save(tmp_path)
    again = Encoder.load(tmp_path)
    assert again.config == encoder.config
    for (name, before), (other, after) in zip(
        encoder.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert name == other
        assert before.equal(after), name


def test_prefixed_and_half_precision_weights_load_in_float32(make_folder: MakeFolder) -> None:
    folder = make_folder()
    whole = Encoder.load(folder)
    weights = load_file(folder / "model.safetensors")
    halves = {f"bert.{name}": tensor.half() for name, tensor in weights.items()}
    save_file({**halves, "cls.predictions.bias": torch.zeros(3)}, folder / "model.safetensors")
    loaded = Encoder.load(folder)
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        assert tensor.equal(whole.state_dict()[name].half().float()), name


def test_first_layers_only(tiny_folder: Path) -> None:
    with torch.inference_mode():
        whole = Encoder.load(tiny_folder)(pack(ROWS))
        cut = Encoder.load(tiny_folder, layers=2)(pack(ROWS))
    assert len(whole) == 6
    assert cut.equal(whole[:3])


def test_more_layers_than_there_are(tiny_folder: Path) -> None:
    with pytest.raises(UserError, match="has 5 layers, 6 were asked for"):
        Encoder.load(tiny_folder, layers=6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "albert"}, "'albert'"),
        ({"is_decoder": True}, "no decoders"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
    ],
)
def test_other_families_are_refused(make_folder: MakeFolder, change: dict[str, str], named: str) -> None:
    folder = make_folder()
    change_config(folder, **change)
    with pytest.raises(UserError, match=named):
        EncoderConfig.load(folder)


def test_too_few_buckets_of_distances_are_refused(make_folder: MakeFolder) -> None:
    folder = make_folder()
    change_config(folder, model_type="mpnet", relative_attention_num_buckets=3)
    with pytest.raises(UserError, match="relative_attention_num_buckets 3 is not a whole number from 4"):
        EncoderConfig.load(folder)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        Encoder.load(tmp_path)


def test_no_safetensors(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle files are not read"):
        Encoder.load(folder)


def test_cut_off_safetensors(make_folder: MakeFolder) -> None:
    folder = make_folder()
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        Encoder.load(folder)


def test_a_missing_weight_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder()
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.3.output.dense.bias"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"encoder\.layer\.3\.output\.dense\.bias"):
        Encoder.load(folder)


def test_tokenizer_adds_special_tokens_and_does_not_pad(tiny_folder: Path) -> None:
    # bi is the third word after five special tokens, bo the fourth; 1 is [UNK].
    assert SentenceTokenizer(tiny_folder)(["bi", "BI bo xyz", ""]) == [[2, 7, 3], [2, 7, 8, 1, 3], [2, 3]]


def test_tokenizer_cuts_at_the_folders_length(make_folder: MakeFolder) -> None:
    folder = make_folder()
    long = "bi " * 50
    assert len(SentenceTokenizer(folder)([long])[0]) == 32
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    ids = SentenceTokenizer(folder)([long])[0]
    assert len(ids) == 7
    assert (ids[0], ids[-1]) == (2, 3)
    assert len(SentenceTokenizer(folder, max_length=5)([long])[0]) == 5


def test_tokenizer_takes_a_lone_surrogate(tiny_folder: Path) -> None:
    assert SentenceTokenizer(tiny_folder)(["bi \ud800"])[0][:2] == [2, 7]


def test_no_tokenizer(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        SentenceTokenizer(folder)


@pytest.mark.parametrize("relative_buckets", [0, 8])
def test_a_layer_compiles_as_one_graph(relative_buckets: int) -> None:
    encoder = Encoder(EncoderConfig(1, 16, 2, 32, 50, 16, relative_buckets=relative_buckets))
    batch = encoder.with_bias(pack([[3, 4], [5, 6], [3, 4, 5]]))
    states = encoder.embed(batch)
    (layer,) = encoder.layers
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=False)
    assert compiled(states, batch).equal(layer(states, batch))
