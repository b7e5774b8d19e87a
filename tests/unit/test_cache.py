from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import MakeFolder

from leap.core.files import sha256_of_sentences
from leap.core.source_code import code_of
from leap.evaluate.encode import full_and_exited, layer_vectors
from leap.evaluate.vector_cache import CODE, VectorCache, entry_name, vector_cache
from leap.exits import ExitRule, LeapEncoder

RULE = ExitRule(0.885, 2, 2)
WIDE = 10**9


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("encoded again")


def test_a_second_call_reads_what_the_first_one_computed(
    tiny_model: LeapEncoder, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VectorCache(tmp_path / "vectors", WIDE)
    pooled = layer_vectors(tiny_model, sentences, 8, cache)
    both = full_and_exited(tiny_model, sentences, RULE, 8, "texts", cache)
    assert pooled.equal(layer_vectors(tiny_model, sentences, 8))
    monkeypatch.setattr(tiny_model, "pooled_layers", refuse)
    assert pooled.equal(layer_vectors(tiny_model, sentences, 8, cache))
    again = full_and_exited(tiny_model, [*sentences, sentences[0]], RULE, 8, "texts", cache)
    assert again.full[:60].equal(both.full)
    assert again.exited[60].equal(both.exited[0])
    assert again.layers[:60].equal(both.layers)
    assert again.tokens.tolist() == [len(text.split()) + 2 for text in [*sentences, sentences[0]]]
    with pytest.raises(AssertionError, match="encoded again"):
        layer_vectors(tiny_model, sentences[::-1], 8, cache)
    # Another exit rule needs no other vectors.
    later = full_and_exited(tiny_model, sentences, ExitRule(0.9, 2, 2), 8, "texts", cache)
    assert later.full.equal(both.full)
    assert (later.layers >= both.layers).all()
    assert not later.layers.equal(both.layers)


def test_layers_that_exceed_the_cache_are_computed_and_not_stored(
    tiny_model: LeapEncoder, sentences: list[str], tmp_path: Path
) -> None:
    # 60 texts, 6 vectors of 16 floats each.
    size = 60 * 6 * 16 * 4
    for limit, stored in ((size - 1, False), (size, True)):
        cache = VectorCache(tmp_path / str(limit), limit)
        result = full_and_exited(tiny_model, sentences, RULE, 8, "texts", cache)
        assert result.full.equal(full_and_exited(tiny_model, sentences, RULE, 8).full)
        assert cache.folder.exists() is stored


def test_another_model_has_another_name(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder(seed=1)
    names = [entry_name(LeapEncoder(folder, "cpu"), sentences, "x")]
    names.append(entry_name(LeapEncoder(make_folder(seed=2), "cpu"), sentences, "x"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    names.append(entry_name(LeapEncoder(folder, "cpu"), sentences, "x"))
    names.append(entry_name(LeapEncoder(folder, "cpu"), sentences, "y"))
    assert len(set(names)) == 4
    # The exit settings are no part of what layers compute.
    (folder / "leap.json").write_text('{"exit": {"threshold": 0.9, "min_layer": 2, "patience": 1}}')
    assert entry_name(LeapEncoder(folder, "cpu"), sentences, "y") == names[3]


def test_a_model_opened_otherwise_has_another_name(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    opened = [
        LeapEncoder(folder, "cpu"),
        LeapEncoder(folder, "cpu", quantize="int8"),
        LeapEncoder(folder, "cpu", model_kwargs={"dtype": "bfloat16"}),
        LeapEncoder(folder, "cpu", prompts={"query": "find: "}, default_prompt_name="query"),
    ]
    assert len({entry_name(model, sentences, "x") for model in opened}) == 4
    assert entry_name(LeapEncoder(folder, "cpu"), sentences, "x") == entry_name(opened[0], sentences, "x")


def test_every_file_that_decides_a_vector_is_in_the_name(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    model = LeapEncoder(folder, "cpu")
    names = [entry_name(model, sentences, "x")]
    for file in (
        "predictors.safetensors",
        "sentencepiece.model",
        "1_Pooling/config.json",
        "tokenizer_config.json",
    ):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(file)
        names.append(entry_name(model, sentences, "x"))
    assert len(set(names)) == 5
    # When to leave is no part of what layers compute.
    (folder / "calibration.json").write_text("{}")
    (folder / "leap.json").write_text("{}")
    assert entry_name(model, sentences, "x") == names[-1]


def test_the_code_of_every_sub_package_and_kernel_is_in_the_name(tmp_path: Path) -> None:
    real = code_of(*CODE)
    files = ("models/packed_encoder.py", "models/kernels/varlen.py", "exits/cuda/encoder.cu", "exits/rules.py")
    assert {*files, "evaluate/encode.py"} <= set(real)
    assert not any("__pycache__" in name or name.startswith("evaluate/retrieval") for name in real)
    codes = []
    for number, name in enumerate(files):
        package = tmp_path / str(number)
        for file in files:
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            (package / file).write_text("changed" if file == name else "as before")
        codes.append(code_of(*CODE, package=package))
    assert len({tuple(sorted(code.items())) for code in codes}) == len(files)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_no_two_lists_of_texts_share_a_hash(one: list[str], two: list[str]) -> None:
    assert (sha256_of_sentences(one) == sha256_of_sentences(two)) == (one == two)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_encoded_again(
    tiny_model: LeapEncoder, sentences: list[str], tmp_path: Path, damage: str
) -> None:
    cache = VectorCache(tmp_path / "vectors", WIDE)
    pooled = layer_vectors(tiny_model, sentences, 8, cache)
    (file,) = cache.folder.iterdir()
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes({"cut": content[:-50], "flipped": content, "empty": b""}[damage])
    assert pooled.equal(layer_vectors(tiny_model, sentences, 8, cache))
    (rewritten,) = cache.folder.iterdir()
    content[-100] ^= 1
    assert rewritten.read_bytes() == content


def test_the_folder_stays_below_its_bound(tmp_path: Path, tiny_model: LeapEncoder) -> None:
    cache = VectorCache(tmp_path / "vectors", 2_500)
    made: list[str] = []

    def ask(text: str) -> None:
        def compute() -> dict[str, torch.Tensor]:
            made.append(text)
            return {"vectors": torch.ones(200)}

        cache.vectors(tiny_model, [text], "test", compute)

    for text in ("a", "b", "a", "c", "a", "b"):
        ask(text)
    # Two fit. c comes in for b, which waited longer than a, and b for c.
    assert made == ["a", "b", "c", "b"]
    assert len(list(cache.folder.iterdir())) == 2
    stray = cache.folder / ".half.safetensors.x.part"
    stray.mkdir()
    (stray / ".lock").touch()
    (stray / "half.safetensors").write_bytes(b"x" * 2_400)
    ask("d")
    assert not stray.exists()  # of a killed process
    assert len(list(cache.folder.iterdir())) == 2


def test_what_exceeds_the_bound_is_not_kept(tmp_path: Path, tiny_model: LeapEncoder) -> None:
    cache = VectorCache(tmp_path / "vectors", 100)
    result = cache.vectors(tiny_model, ["a"], "test", lambda: {"vectors": torch.ones(200)})
    assert result["vectors"].sum() == 200
    assert not cache.folder.exists()
    assert vector_cache(0.0) is None


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, tiny_model: LeapEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "vectors").write_text("a file where the folder should be")
    cache = VectorCache(tmp_path / "vectors", WIDE)
    result = cache.vectors(tiny_model, ["a"], "test", lambda: {"vectors": torch.ones(3)})
    assert result["vectors"].tolist() == [1.0, 1.0, 1.0]
    assert "could not be written" in caplog.text


def test_a_write_that_is_killed_leaves_nothing_to_read(
    tmp_path: Path, tiny_model: LeapEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VectorCache(tmp_path / "vectors", WIDE)

    def killed(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("leap.evaluate.vector_cache.save_with_checksum", killed)
        with pytest.raises(KeyboardInterrupt):
            cache.vectors(tiny_model, ["a"], "test", lambda: {"vectors": torch.ones(3)})
    assert list(cache.folder.iterdir()) == []
    calls: list[int] = []
    for _ in range(2):
        cache.vectors(tiny_model, ["a"], "test", lambda: calls.append(1) or {"vectors": torch.ones(3)})
    assert len(calls) == 1
