"""`leap calibrate`: the files next to the weights, what refuses them, and how LeapEncoder uses them."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import WORDS, MakeFolder

from leap.cli import run as run_command
from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.exits import ExitRule, LeapEncoder
from leap.exits.calibrate.calibrate_folder import Calibrated, calibrate, calibrate_folder, describe, read_column
from leap.exits.calibrate.fit_predictors import fit_predictors
from leap.exits.calibrate.measure import measure
from leap.exits.calibrate.query_layer import measure_overlap
from leap.exits.calibrate.risk import Demand
from leap.exits.rules import at_layers, by_predictors, calibrated, near_final, patient
from leap.latency.retrofit_table import measure_retrofit
from leap.models.exit_heads import ExitHeads

# What the tiny random model can hold, with exits at three layers.
DEMAND = Demand(floor=0.85, risk=0.2, confidence=0.9, keep=0.4)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Six hundred different sentences of 1 to 12 words."""
    generator = random.Random(8)
    made = (" ".join(generator.choices(WORDS, k=generator.randint(1, 12))) for _ in range(2000))
    return list(dict.fromkeys(made))[:600]


@pytest.fixture
def file(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "held-out.txt"
    path.write_text("\n".join(texts) + "\n")
    return path


def run(folder: Path | str, file: Path, demand: Demand = DEMAND, **changes: object) -> Calibrated:
    options: dict[str, object] = {
        "column": None,
        "with_heads": False,
        "output": None,
        "batch_size": 64,
        "device": "cpu",
        "seed": 17,
    }
    return calibrate_folder(calibrate, str(folder), [file], demand, **options | changes)


def test_of_a_hub_model_a_copy_is_calibrated(
    make_folder: MakeFolder, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"a/b is not a folder here: .*by --output"):
        run("a/b", file)
    run("a/b", file, output=tmp_path / "calibrated")
    assert not (folder / "calibration.json").exists()
    LeapEncoder(tmp_path / "calibrated", "cpu").encode(["ba"], strategy="calibrated")


def pooled_of(model: LeapEncoder, sentences: list[str]) -> torch.Tensor:
    pooled = torch.empty(model.depth + 1, len(sentences), model.encoder.config.width)
    for rows, vectors in model.pooled_layers(sentences, 64):
        pooled[:, rows] = vectors
    return pooled


def test_the_calibrated_strategy_follows_the_file(
    make_folder: MakeFolder, file: Path, sentences: list[str]
) -> None:
    folder = make_folder()
    result = run(folder, file)
    assert result.report["expected_layers"] < 5
    model = LeapEncoder(folder, "cpu")
    assert model.calibration.thresholds.equal(result.calibration.thresholds)
    assert model.calibration.score == result.calibration.score
    pooled = pooled_of(model, sentences)
    expected = calibrated(pooled, model.calibration)
    assert len(expected.unique()) > 1
    vectors, exits = model.encode(sentences, strategy="calibrated", return_exit_layers=True)
    assert exits.tolist() == expected.tolist()
    np.testing.assert_allclose(vectors, at_layers(pooled, expected).numpy(), atol=1e-5)


def test_it_is_the_same_again(make_folder: MakeFolder, file: Path) -> None:
    folder = make_folder()
    run(folder, file)
    first = (folder / "calibration.json").read_bytes()
    run(folder, file, batch_size=7)
    again = json.loads((folder / "calibration.json").read_text())
    assert again["min_layer"] == json.loads(first)["min_layer"]
    assert again["thresholds"] == pytest.approx(json.loads(first)["thresholds"], abs=1e-5)


def test_the_report_is_what_happens_on_the_test_part(make_folder: MakeFolder, texts: list[str]) -> None:
    model = LeapEncoder(make_folder(), "cpu")
    result = calibrate(model, texts, DEMAND)
    rows = torch.randperm(600, generator=torch.Generator().manual_seed(17)).tensor_split(3)[2]
    pooled = pooled_of(model, [texts[row] for row in rows.tolist()])
    exits = calibrated(pooled, result.calibration)
    cosines = torch.cosine_similarity(at_layers(pooled, exits), pooled[-1], dim=-1)
    early = exits < 5
    assert result.report["sentences"] == {"fit": 200, "order": 200, "test": 200}
    assert result.report["exited"] == early.sum()
    assert result.report["realised_risk"] == pytest.approx((cosines[early] < 0.85).double().mean().item())
    assert result.report["realised_risk"] <= 0.2
    assert result.report["expected_layers"] == pytest.approx(exits.double().mean().item())
    assert f"of {early.sum()} exited vectors" in "\n".join(describe(result))


def test_nothing_is_safe_for_a_floor_out_of_reach(
    make_folder: MakeFolder, file: Path, sentences: list[str]
) -> None:
    folder = make_folder()
    result = run(folder, file, Demand(floor=0.9999, risk=0.05, confidence=0.95))
    assert "no exit can be shown to be safe" in describe(result)[0]
    assert json.loads((folder / "calibration.json").read_text())["thresholds"] == [None] * 5
    model = LeapEncoder(folder, "cpu")
    vectors, exits = model.encode(sentences, strategy="calibrated", return_exit_layers=True)
    assert set(exits.tolist()) == {5}
    np.testing.assert_array_equal(vectors, model.encode(sentences, strategy="full"))


def test_exited_vectors_go_through_the_heads(make_folder: MakeFolder, file: Path, sentences: list[str]) -> None:
    folder = make_folder()
    raw = LeapEncoder(folder, "cpu")
    plain, mapping = run(folder, file), run(folder, file, with_heads=True)
    assert mapping.report["expected_layers"] < plain.report["expected_layers"]
    model = LeapEncoder(folder, "cpu")
    pooled = pooled_of(model, sentences)
    mapped = model.returned(pooled)
    assert model.heads is not None
    torch.testing.assert_close(mapped[2], pooled[2] @ model.heads.maps[1])
    expected = calibrated(pooled, model.calibration)
    assert (expected < 5).any()
    vectors, exits = model.encode(sentences, strategy="calibrated", return_exit_layers=True)
    assert exits.tolist() == expected.tolist()
    np.testing.assert_allclose(vectors, at_layers(mapped, expected).numpy(), atol=1e-5)
    # Every strategy maps what leaves early, decides on the layers' own vectors, and leaves full depth alone.
    np.testing.assert_allclose(model.encode(sentences, strategy="fixed", layer=2), mapped[2].numpy(), atol=1e-5)
    np.testing.assert_array_equal(model.encode(sentences, strategy="full"), raw.encode(sentences, strategy="full"))
    options = {"threshold": 0.93, "min_layer": 2, "return_exit_layers": True}
    left, layers = model.encode(sentences, **options)
    assert layers.tolist() == raw.encode(sentences, **options)[1].tolist()
    assert len(set(layers.tolist())) > 1
    np.testing.assert_allclose(left, at_layers(mapped, torch.tensor(layers)).numpy(), atol=1e-5)


def test_a_model_with_heads_is_calibrated_through_them(
    make_folder: MakeFolder, file: Path, sentences: list[str]
) -> None:
    folder = make_folder()
    run(folder, file, with_heads=True)
    heads = (folder / "heads.safetensors").read_bytes()
    with pytest.raises(UserError, match="has exit heads already"):
        run(folder, file, with_heads=True)
    run(folder, file)
    assert (folder / "heads.safetensors").read_bytes() == heads
    model = LeapEncoder(folder, "cpu")
    pooled = pooled_of(model, sentences)
    expected = at_layers(model.returned(pooled), calibrated(pooled, model.calibration))
    np.testing.assert_allclose(model.encode(sentences, strategy="calibrated"), expected.numpy(), atol=1e-5)


def test_files_of_other_weights_are_refused_by_name(make_folder: MakeFolder, file: Path) -> None:
    folder, other = make_folder(seed=0), make_folder(seed=1)
    run(folder, file)
    (other / "calibration.json").write_bytes((folder / "calibration.json").read_bytes())
    model = LeapEncoder(other, "cpu")
    with pytest.raises(UserError, match=r"calibration\.json was made from other weights .*leap calibrate"):
        model.encode(["bo"], strategy="calibrated")
    # A plain theta stays available.
    model.encode(["bo"])
    ExitHeads(torch.eye(16).repeat(4, 1, 1)).save(folder)
    (other / "heads.safetensors").write_bytes((folder / "heads.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"heads\.safetensors was made from other weights .*loss\.heads"):
        LeapEncoder(other, "cpu")


def test_a_calibration_of_other_heads_is_refused(make_folder: MakeFolder, file: Path) -> None:
    folder = make_folder()
    run(folder, file, with_heads=True)
    ExitHeads(torch.eye(16).repeat(4, 1, 1)).save(folder)
    with pytest.raises(UserError, match="made with other exit heads"):
        LeapEncoder(folder, "cpu").encode(["bo"], strategy="calibrated")
    (folder / "heads.safetensors").unlink()
    with pytest.raises(UserError, match="made with other exit heads"):
        LeapEncoder(folder, "cpu").encode(["bo"], strategy="calibrated")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"thresholds": [0.9]}, "5 numbers or nulls"),
        ({"thresholds": [None, None, None, None, 0.5]}, "the last one null"),
        ({"thresholds": [0.9, None, None, None, None], "score": "consecutive"}, "below layer 2"),
        ({"thresholds": ["high"] * 5}, "does not fit"),
        ({"score": "guessed"}, "consecutive or predicted"),
        ({"score": "predicted", "coefficients": [[1, 2]]}, "5 rows of 6"),
        ({"patience": 0, "score": "consecutive"}, "does not fit"),
    ],
)
def test_a_damaged_calibration(make_folder: MakeFolder, file: Path, change: dict[str, object], named: str) -> None:
    folder = make_folder()
    run(folder, file)
    path = folder / "calibration.json"
    content = json.loads(path.read_text()) | change
    write_with_checksum(path, content)
    with pytest.raises(UserError, match=named):
        LeapEncoder(folder, "cpu").encode(["bo"], strategy="calibrated")
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="was edited after it was written"):
        LeapEncoder(folder, "cpu").encode(["bo"], strategy="calibrated")


def test_what_is_missing_is_named_with_the_way_to_it(tiny_model: LeapEncoder) -> None:
    with pytest.raises(UserError, match=r"calibration\.json is missing: `leap calibrate"):
        tiny_model.encode(["bo"], strategy="calibrated")
    with pytest.raises(UserError, match=r"predictors\.safetensors is missing: .*exit\.predictors: true"):
        tiny_model.encode(["bo"], strategy="predictors")


def test_predictors_patience_and_the_oracle(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    model = LeapEncoder(folder, "cpu")
    pooled = pooled_of(model, sentences)
    fit_predictors([pooled]).save(folder)
    options = {"threshold": 0.84, "min_layer": 2}
    for strategy, more, expected in (
        ("predictors", {}, by_predictors(pooled, model.predictors, 0.84, 2)),
        ("patience", {"pabee_patience": 2, "threshold": 0.94}, patient(pooled, ExitRule(0.94, 2), 2)),
        ("near_final", {}, near_final(pooled, 0.84, 2)),
    ):
        vectors, exits = model.encode(
            sentences, strategy=strategy, return_exit_layers=True, batch_size=9, **options | more
        )
        assert exits.tolist() == expected.tolist(), strategy
        assert len(expected.unique()) > 1, strategy
        np.testing.assert_allclose(vectors, at_layers(pooled, expected).numpy(), atol=1e-5)
    # The oracle has no l_min of its own; the folder's is 5 here.
    assert model.rule.min_layer == 5
    free = model.encode(sentences, strategy="near_final", threshold=0.8, return_exit_layers=True)[1]
    assert free.tolist() == near_final(pooled, 0.8).tolist()
    assert free.min() < 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "guess"}, "strategy 'guess' is none of converged, patience"),
        ({"strategy": "patience", "pabee_patience": 5}, "pabee_patience 5"),
        ({"strategy": "near_final", "layer": 2}, "strategy='fixed'"),
        ({"strategy": "near_final", "threshold": 2.0}, "threshold 2.0"),
    ],
)
def test_arguments_that_do_not_fit(tiny_model: LeapEncoder, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny_model.encode(["bi"], **options)


def test_a_copy_is_calibrated_and_the_model_left_alone(
    make_folder: MakeFolder, file: Path, tmp_path: Path
) -> None:
    folder = make_folder()
    before = sorted(folder.rglob("*"))
    run(folder, file, output=tmp_path / "copy", with_heads=True)
    assert sorted(folder.rglob("*")) == before
    copy = LeapEncoder(tmp_path / "copy", "cpu")
    assert copy.heads is not None


def test_nothing_is_half_written(
    make_folder: MakeFolder, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("leap.exits.calibration.write_with_checksum", fail)
    with pytest.raises(OSError, match="no space"):
        run(make_folder(), file, output=tmp_path / "copy")
    assert not any(path.name.startswith((".copy", "copy")) for path in tmp_path.iterdir())


def test_repeated_sentences_count_once(make_folder: MakeFolder, texts: list[str]) -> None:
    model = LeapEncoder(make_folder(), "cpu")
    with pytest.raises(UserError, match="30 different sentences are too few"):
        calibrate(model, texts[:30] * 20, DEMAND)


def test_sentences_of_every_form(tmp_path: Path) -> None:
    files = {
        "a.txt": "one\ntwo\n",
        "a.csv": "sentence,x\none,1\ntwo,2\n",
        "a.jsonl": '{"q": "one"}\n{"q": "two"}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert read_column(tmp_path / name, "q" if name == "a.jsonl" else None) == ["one", "two"]
    with pytest.raises(UserError, match="no column sentence: its columns are text"):
        read_column(tmp_path / "a.txt", "sentence")
    with pytest.raises(UserError, match="no key sentence"):
        read_column(tmp_path / "a.jsonl", None)
    with pytest.raises(UserError, match="is not a file"):
        read_column(tmp_path / "none.txt", None)
    (tmp_path / "b.jsonl").write_text('{"sentence": 3}\n')
    with pytest.raises(UserError, match="row 1, sentence: expected text, found 3"):
        read_column(tmp_path / "b.jsonl", None)


def test_an_existing_output_is_refused_before_any_work(
    make_folder: MakeFolder, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target = make_folder(), tmp_path / "mine"
    target.mkdir()
    (target / "notes.txt").write_text("not ours")
    monkeypatch.setattr("leap.exits.calibrate.calibrate_folder.LeapEncoder", None)
    with pytest.raises(UserError, match="mine exists"):
        run(folder, file, output=target)
    assert (target / "notes.txt").read_text() == "not ours"
    assert [path.name for path in target.iterdir()] == ["notes.txt"]


def test_the_command(
    make_folder: MakeFolder, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder()

    def leap(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["leap", "calibrate", *map(str, arguments), "--device", "cpu"])
        with pytest.raises(SystemExit) as ended:
            run_command()
        return ended.value.code, *capsys.readouterr()

    demand = ("--floor", 0.85, "--risk", 0.2, "--confidence", 0.9, "--keep", 0.4)
    code, printed, _ = leap(folder, "--sentences", file, "--heads", *demand)
    assert code == 0
    for words in ("score: ", "expected layers: ", "realised risk: ", "neighbours kept: ", "with fitted heads"):
        assert words in printed
    assert "(NN@10) " in printed
    assert {"calibration.json", "heads.safetensors"} <= {path.name for path in folder.iterdir()}
    code, _, error = leap(folder, "--sentences", file, "--risk", 2)
    assert (code, error.splitlines()[-1]) == (1, "error: risk 2.0 must lie between 0 and 1")
    code, _, error = leap(folder, "--sentences", file, "--queries", file)
    assert code == 1
    assert "give --sentences alone, or --queries together with --documents" in error


def test_the_dimensions_that_a_model_returns_are_judged(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    ExitHeads(torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(0))).save(folder)
    model = LeapEncoder(folder, "cpu", truncate_dim=5)
    measured, vectors = measure(model, sentences, 1, model.heads, 8, torch.arange(3))
    assert vectors.shape == (5, 3, 5)
    full = torch.from_numpy(model.encode(sentences, strategy="full"))
    for layer in (1, 3):
        leaves = torch.from_numpy(model.encode(sentences, strategy="fixed", layer=layer))
        expected = torch.cosine_similarity(leaves, full)
        torch.testing.assert_close(measured.similarity[layer - 1], expected, atol=1e-5, rtol=0)
        same = torch.cosine_similarity(vectors[layer - 1], leaves[:3])
        torch.testing.assert_close(same, torch.ones(3), atol=1e-5, rtol=0)
    queries, documents = sentences[:20], sentences[20:]
    shares = measure_overlap(model, queries, documents).mean(1).tolist()
    rows = measure_retrofit(model, model, queries, documents)
    assert [row.own for row in rows] == pytest.approx([*shares, 1.0])
    whole = measure_overlap(LeapEncoder(folder, "cpu"), queries, documents).mean(1).tolist()
    assert shares != pytest.approx(whole)
