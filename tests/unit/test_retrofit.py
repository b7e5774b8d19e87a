"""`leap retrofit`: a model that exists learns to exit, stops and goes on, and loads everywhere."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_evidence import EMBEDDED
from ruamel.yaml import YAML
from safetensors.torch import load_file
from test_query_layer import texts
from tiny_models import MakeFolder, write_modules
from zoo import write_model

from leap.cli import run as run_command
from leap.core.errors import UserError
from leap.core.settings import parse_settings
from leap.core.unfinished import held
from leap.exits import LeapEncoder
from leap.latency.retrofit_table import measure_retrofit, table
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.train import retrofit as module
from leap.train.retrofit import Training, hold_out, retrofit

SHORT = Training(epochs=2, batch_size=10, learning_rate=3e-3, max_length=32)


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    return make_folder(layers=4, width=16)


def test_the_model_exits_and_loads_everywhere(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    output = tmp_path / "elastic"
    retrofit(folder, sentences, output, SHORT, query_layer=2, device="cpu")
    assert sorted(path.name for path in tmp_path.glob("elastic*")) == ["elastic"]
    model = LeapEncoder(output, "cpu")
    assert model.heads is not None
    assert model.heads.maps.shape == (3, 16, 16)
    content = json.loads((output / "leap.json").read_text())
    assert (content["query"], content["document"]) == ({"layer": 2}, "full")
    vectors, layers = model.encode(sentences, return_exit_layers=True)
    assert set(layers.tolist()) == {4}
    theirs = SentenceTransformer(str(output), device="cpu", local_files_only=True)
    np.testing.assert_allclose(vectors, theirs.encode(sentences), atol=1e-5)
    assert not np.allclose(model.encode(sentences, strategy="fixed", layer=2), vectors, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "pooling", "side"),
    [
        *(("modernbert", "mean_tokens", "right"), ("qwen3", "lasttoken", "left")),
        *(("mpnet", "mean_tokens", "right"), ("bert", "cls_token", "right")),
    ],
)
def test_any_architecture_learns_to_exit(
    name: str, pooling: str, side: str, tmp_path: Path, sentences: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_modules(write_model(tmp_path / "model", name, side=side), pooling, normalize=False)
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot", "prompts": {}}')
    retrofit(folder, sentences, tmp_path / "elastic", SHORT, query_layer=2, device="cpu")
    model, before = LeapEncoder(tmp_path / "elastic", "cpu"), LeapEncoder(folder, "cpu")
    assert type(model.encoder) is type(before.encoder)
    assert model.heads is not None
    assert model.similarity_fn_name == "dot"
    assert (model.encoder.pooling, model.normalizes) == (before.encoder.pooling, False)
    vectors = model.encode(sentences)
    theirs = SentenceTransformer(str(tmp_path / "elastic"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(vectors, theirs.encode(sentences), atol=1e-4)
    np.testing.assert_allclose(model.encode_document(sentences), vectors, atol=1e-5)
    queries, layers = model.encode_query(sentences, return_exit_layers=True)
    assert set(layers.tolist()) == {2}
    assert (
        _cosines(queries, vectors) > _cosines(before.encode(sentences, strategy="fixed", layer=2), vectors) + 0.01
    )
    assert _cosines(before.encode(sentences, strategy="full"), vectors) > 0.9


@pytest.mark.parametrize(("name", "trained"), [("bert", {"2", "3"}), ("modernbert", None)])
def test_little_text_trains_the_last_layers(
    name: str, trained: set[str] | None, folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    if trained is None:  # another library's layers are all trained
        folder = write_modules(write_model(tmp_path / "model", name), "mean_tokens")
    retrofit(folder, sentences, tmp_path / "elastic", replace(SHORT, little_text=True), device="cpu")
    assert LeapEncoder(tmp_path / "elastic", "cpu").heads is not None
    if trained is not None:
        before, after = (Encoder.load(each).state_dict() for each in (folder, tmp_path / "elastic"))
        changed = {key for key, tensor in before.items() if not torch.equal(tensor, after[key])}
        assert {key.split(".")[1] for key in changed if key.startswith("layers.")} == trained
        assert all(key.startswith("layers.") for key in changed)


def test_on_a_cpu_the_recipe_is_that_of_the_embedded_profile() -> None:
    elastic = parse_settings(YAML(typ="safe").load(EMBEDDED.read_text()), "test").variant("elastic")
    shape = EncoderConfig(6, 384, 12, 1536, vocabulary=100, positions=128)
    chosen = module._settings(shape, 128, Training.of("cpu"), 64, "cpu")
    for key, value in chosen.loss.model_dump().items():
        if key not in ("late_from", "layer_map", "redundancy_clip"):  # of terms whose weight is zero
            assert getattr(elastic.loss, key) == getattr(chosen.loss, key), (key, value)
    assert chosen.student.start == elastic.student.start
    assert (chosen.train.epochs, chosen.train.batch_size, chosen.train.learning_rate) == (
        *(elastic.train.epochs, elastic.train.batch_size, elastic.train.learning_rate),
    )


@pytest.mark.parametrize(("width", "rate"), [(256, 2e-3), (384, 2e-3), (768, 7e-4), (1024, 4.6e-4)])
def test_a_wider_model_takes_smaller_steps_and_stronger_exits(width: int, rate: float) -> None:
    shape = EncoderConfig(12, width, 4, 64, vocabulary=100, positions=128)
    large = Training(epochs=10, batch_size=1024, max_length=128)
    chosen = module._settings(shape, 128, large, 64, "cpu")
    assert chosen.train.learning_rate == pytest.approx(rate, rel=0.02)
    weights = chosen.loss.layer_weights
    terms = (chosen.loss.beta, chosen.loss.exit_contrast, weights.early, weights.late_from)
    assert terms == ((0.5, 4.0, 2.0, 6) if width > 384 else (0.2, 1.0, 1.0, 1))
    assert module._settings(shape, 128, replace(large, learning_rate=1e-5), 64, "cpu").train.learning_rate == 1e-5


def _cosines(one: Any, two: Any) -> float:
    return torch.cosine_similarity(torch.tensor(one), torch.tensor(two), dim=-1).mean().item()


def test_training_brings_exits_nearer_and_the_anchor_holds_full_depth(
    folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    longer = Training(epochs=12, batch_size=10, learning_rate=3e-3, max_length=32)
    retrofit(folder, sentences, tmp_path / "elastic", longer, device="cpu")
    model, before = LeapEncoder(tmp_path / "elastic", "cpu"), LeapEncoder(folder, "cpu")
    (_, pooled), *_ = model.pooled_layers(sentences, batch_size=len(sentences))
    (_, start), *_ = before.pooled_layers(sentences, batch_size=len(sentences))
    near, far = (
        torch.cosine_similarity(layers[1], layers[-1], dim=-1).mean() for layers in (model.returned(pooled), start)
    )
    assert near > far + 0.05
    assert torch.cosine_similarity(pooled[-1], start[-1], dim=-1).mean() > near


def test_it_goes_on_where_it_stopped(
    folder: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    retrofit(folder, sentences, tmp_path / "whole", SHORT, device="cpu")
    train = module.train_student

    def stopped(*arguments: Any) -> Any:
        def stop(*_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

        return train(*arguments[:-1], stop)

    monkeypatch.setattr(module, "train_student", stopped)
    monkeypatch.setattr(module, "LOG_EVERY", 3)
    with pytest.raises(KeyboardInterrupt):
        retrofit(folder, sentences, tmp_path / "again", SHORT, device="cpu")
    assert not (tmp_path / "again").exists()
    assert [state.stem for state in (tmp_path / "again.unfinished" / "states").iterdir()] == ["step-00000003"]
    monkeypatch.setattr(module, "train_student", train)
    retrofit(folder, sentences, tmp_path / "again", SHORT, device="cpu")
    for name in ("model.safetensors", "heads.safetensors"):
        one, two = (load_file(tmp_path / part / name) for part in ("whole", "again"))
        assert all(torch.equal(one[key], two[key]) for key in one), name


def test_the_output_appears_measured_or_not_at_all(
    folder: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "elastic"

    def stop(written: Path) -> None:
        assert LeapEncoder(written, "cpu").depth == 4
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrofit(folder, sentences, output, SHORT, device="cpu", finish=stop)
    assert not output.exists()
    trained = (tmp_path / "elastic.unfinished" / "student" / "model.safetensors").read_bytes()
    monkeypatch.setattr(module, "train_student", None)  # the training is not done again
    result = retrofit(folder, sentences, output, SHORT, device="cpu")
    assert (output / "model.safetensors").read_bytes() == trained
    assert result["steps"] == 2 * (len(sentences) // 10)
    assert not (tmp_path / "elastic.unfinished").exists()


def test_files_of_the_user_stay(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    notes = tmp_path / "out.unfinished" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    with pytest.raises(
        UserError, match=r"out\.unfinished, where .* not of a training \(notes\.txt\): move it away"
    ):
        retrofit(folder, sentences, tmp_path / "out", SHORT)
    assert notes.read_text() == "mine"
    (tmp_path / "other.unfinished").write_text("mine")
    with pytest.raises(UserError, match="move it away, or name another --output"):
        retrofit(folder, sentences, tmp_path / "other", SHORT)


def test_one_process_at_a_time_trains_an_output(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    with (
        held(tmp_path / "out.unfinished"),
        pytest.raises(UserError, match=r"another process is at work in .*out\.unfinished: wait for its end"),
    ):
        retrofit(folder, sentences, tmp_path / "out", SHORT, device="cpu")
    retrofit(folder, sentences, tmp_path / "out", SHORT, device="cpu")
    assert not (tmp_path / "out.unfinished").exists()


def test_what_cannot_be_done_is_refused_before_any_work(
    folder: Path, tmp_path: Path, sentences: list[str]
) -> None:
    with pytest.raises(UserError, match="exists, a folder that stays as it is"):
        retrofit(folder, sentences, folder, SHORT)
    with pytest.raises(UserError, match="query layer 5 is not a layer"):
        retrofit(folder, sentences, tmp_path / "out", SHORT, query_layer=5)
    with pytest.raises(UserError, match="fewer than one batch of 10"):
        retrofit(folder, sentences[:9], tmp_path / "out", SHORT)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="must be above 0 and finite"):
            retrofit(folder, sentences, tmp_path / "out", replace(SHORT, learning_rate=rate))
    with pytest.raises(UserError, match="too few: a tenth of them is held out"):
        hold_out(sentences[:20])
    assert not list(tmp_path.glob("out*"))


def test_held_out_sentences_are_in_no_other_part() -> None:
    sentences = [f"sentence {number}" for number in range(1100)]
    text, queries, documents = hold_out([*sentences, *sentences[:100]])
    assert (len(text), len(queries), len(documents)) == (935, 55, 110)
    assert sorted([*text, *queries, *documents]) == sorted(sentences)
    # Which part a text is in hardly depends on the others.
    assert len(set(hold_out(sentences[:1090])[1]) & set(queries)) >= 50


def test_the_table_compares_with_both_indices(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    model = LeapEncoder(folder, "cpu")
    rows = measure_retrofit(model, model, sentences[:20], sentences[20:])
    assert [row.layer for row in rows] == [1, 2, 3, 4]
    assert (rows[-1].own, rows[-1].old) == (1.0, 1.0)
    assert all(row.own == row.old < 1.0 and row.milliseconds > 0 for row in rows[:-1])
    assert "100.0%" in table(rows).splitlines()[-1]
    assert Encoder.load(folder).config.layers == len(rows)


def test_the_command_ends_with_the_earliest_layer_that_is_shown(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "elastic"
    text.write_text("\n".join(texts(1000, seed=3)) + "\n")

    def leap(*arguments: object) -> tuple[int, str, str]:
        given = [folder, "--sentences", text, "--output", output, "--device", "cpu", *arguments]
        monkeypatch.setattr(sys, "argv", ["leap", "retrofit", *map(str, given)])
        with pytest.raises(SystemExit) as ended:
            run_command()
        return ended.value.code, *capsys.readouterr()

    assert leap("--keep", 2)[2].splitlines()[-1] == "error: keep 2.0 must lie between 0 and 1"
    code, printed, said = leap("--keep", 0.1)
    assert code == 0, said
    assert "/1 [" not in said  # a timed query has no bar
    assert printed.splitlines()[0].startswith("queries leave at  neighbours kept, own index")
    report = json.loads((output / "query_calibration.json").read_text())
    assert (report["queries"], report["documents"], report["keep"]) == (50, 100, 0.1)
    layer = json.loads((output / "leap.json").read_text())["query"]["layer"]
    assert layer == report["layer"] < 4
    assert printed.splitlines()[-1].startswith(
        f"queries may leave at layer {layer} (at least 10% of the ten nearest"
    )
    assert set(LeapEncoder(output, "cpu").encode_query(["bo"] * 3, return_exit_layers=True)[1].tolist()) == {layer}
    before = (output / "leap.json").read_bytes()
    code, _, said = leap()
    assert code == 1
    assert "exists, a folder that stays as it is" in said
    assert (output / "leap.json").read_bytes() == before
