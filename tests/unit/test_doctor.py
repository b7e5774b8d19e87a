"""`leap doctor` on tiny models whose state is known, through its own command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import MakeFolder
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.doctor.doctor_sentences import BUNDLED, Sample, sample
from leap.doctor.examine import default_rule, examine_model
from leap.doctor.symptoms import costly_checks, false_convergence, flat_curve, zero_exits
from leap.exits import ExitRule, LeapEncoder
from leap.models.exit_heads import ExitHeads


def layers(*similarity: float) -> list[dict[str, object]]:
    return [{"layer": n, "similarity_to_final": value} for n, value in enumerate(similarity, 1)]


def test_flat_is_a_curve_below_the_bound_until_the_last_layer() -> None:
    # all-MiniLM-L6-v2 on STS-B (docs: prototype): flat.
    assert flat_curve(layers(0.222, 0.240, 0.276, 0.327, 0.426, 1.0), 3).found
    assert not flat_curve(layers(0.2, 0.3, 0.4, 0.5, 0.7, 1.0), 3).found
    # What lies before l_min does not count.
    assert flat_curve(layers(0.9, 0.9, 0.3, 0.3, 0.3, 1.0), 3).found
    assert flat_curve(layers(0.9, 1.0), 2).words == "there is no layer between min_layer and the last"


@pytest.mark.parametrize(("rate", "found"), [(0.0, True), (0.0058, True), (0.007, True), (0.01, False)])
def test_nobody_leaves(rate: float, found: bool) -> None:
    assert zero_exits(rate, 0.95).found is found


@pytest.mark.parametrize(
    ("overhead", "rate", "found"), [(0.16, 0.09, True), (0.15, 0.09, False), (0.16, 0.1, False)]
)
def test_checks_that_do_not_pay(overhead: float, rate: float, found: bool) -> None:
    assert costly_checks(overhead, rate).found is found


def test_false_convergence_looks_at_those_that_leave() -> None:
    similarity, leaves = np.array([0.3, 0.5, 1.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])
    symptom = false_convergence(similarity, leaves)
    assert symptom.found
    assert symptom.figures["rate"] == 0.5
    assert symptom.figures["similarity_of_leavers"] == pytest.approx(0.4)
    assert symptom.figures["far"] == 1.0
    assert not false_convergence(np.array([0.95, 0.97, 0.3]), np.array([1.0, 1.0, 0.0])).found
    # Too few to matter, and nobody at all.
    few = np.zeros(100)
    few[0] = 1.0
    assert not false_convergence(np.full(100, 0.3), few).found
    assert false_convergence(np.ones(3), np.zeros(3)).figures["similarity_of_leavers"] is None


def test_the_bundled_sentences() -> None:
    result = sample(None, None)
    assert len(result.sentences) == len(set(result.sentences)) == 1000
    assert BUNDLED.is_file()


def test_a_users_file(tmp_path: Path) -> None:
    lines = [f"sentence number {n % 60}" for n in range(120)]
    (tmp_path / "own.txt").write_text("\n".join(lines))
    assert sample(tmp_path / "own.txt", None).sentences == lines[:60]
    few = sample(tmp_path / "own.txt", None, most=50)
    assert len(few.sentences) == 50
    assert few == sample(tmp_path / "own.txt", None, most=50)
    table = [json.dumps({"title": line}) for line in lines]
    (tmp_path / "own.jsonl").write_text("\n".join(table))
    assert len(sample(tmp_path / "own.jsonl", "title").sentences) == 60
    with pytest.raises(UserError, match="no key sentence"):
        sample(tmp_path / "own.jsonl", None)
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    with pytest.raises(UserError, match="holds 2 different sentences, at least 50"):
        sample(tmp_path / "short.txt", None)
    with pytest.raises(UserError, match=r"no\.txt does not exist"):
        sample(tmp_path / "no.txt", None)


def write_sentences(path: Path, sentences: list[str]) -> Path:
    path.write_text("\n".join(sentences))
    return path


def make_idle(folder: Path, first: int, last_turns: bool) -> None:
    """Layers from `first` on change nothing; the last one may turn every vector away."""
    from leap.models.packed_encoder import Encoder

    encoder = Encoder.load(folder)
    with torch.no_grad():
        for layer in encoder.layers[first - 1 :]:
            for part in (layer.attention_out, layer.down):
                part.weight.zero_()
                part.bias.zero_()
        if last_turns:
            encoder.layers[-1].norm.weight.neg_()
    encoder.save(folder)


@pytest.mark.parametrize(
    ("turns", "verdict", "false"),
    [(False, "exits and is near", False), (True, "exits and is far (false convergence)", True)],
)
def test_the_command_tells_the_states_apart(
    make_folder: MakeFolder, sentences: list[str], tmp_path: Path, turns: bool, verdict: str, false: bool
) -> None:
    folder, page = make_folder(), tmp_path / "page.html"
    make_idle(folder, 2, last_turns=turns)
    file = write_sentences(tmp_path / "own.txt", sentences)
    options = ["doctor", str(folder), "--sentences", str(file), "--page", str(page), "--device", "cpu"]
    done = CliRunner().invoke(app, [*options, "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["verdict"] == verdict
    assert content["exit_rule"] == {"threshold": 0.95, "min_layer": 2, "patience": 1}
    assert [symptom["found"] for symptom in content["symptoms"]][3] is false
    assert content["page"] == str(page)
    text = page.read_text()
    assert verdict in text
    assert text.count("<svg") == 4
    # Self-contained: nothing is fetched.
    assert "src=" not in text
    assert "<link" not in text
    words = CliRunner().invoke(app, options).stdout
    assert f"VERDICT: {verdict}" in words
    assert ("Do not switch early exit on" in words) is turns
    assert f"pictures: {page}" in words


def test_what_leaves_is_judged_through_the_heads(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    generator = torch.Generator().manual_seed(1)
    ExitHeads(torch.randn(4, *[LeapEncoder(folder, "cpu").width] * 2, generator=generator)).save(folder)
    model = LeapEncoder(folder, "cpu")
    found = examine_model("model", model, Sample("own", sentences), ExitRule(threshold=-1.0, min_layer=3))
    full = model.encode(sentences, strategy="full", normalize_embeddings=True)
    for row in found["diagnosis"]["layers"]:
        leaves = model.encode(sentences, strategy="fixed", layer=row["layer"], normalize_embeddings=True)
        assert row["similarity_to_final"] == pytest.approx((leaves * full).sum(1).mean(), abs=1e-5)
    at_third = found["diagnosis"]["layers"][2]["similarity_to_final"]
    assert found["diagnosis"]["exit"]["similarity"] == pytest.approx(at_third, abs=1e-6)
    assert found["symptoms"][3]["found"]


def test_a_model_whose_queries_leave_early_is_not_told_to_run_at_full_depth(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    folder = make_folder()
    rule = {"threshold": 1.0, "min_layer": 5, "patience": 1}
    (folder / "leap.json").write_text(json.dumps({"exit": rule, "query": {"layer": 3}, "document": "full"}))
    model = LeapEncoder(folder, "cpu")
    found = examine_model("model", model, Sample("own", sentences), model.rule)
    assert found["diagnosis"]["verdict"] == "never exits"
    assert found["verdict"] == "queries leave early"
    there = found["diagnosis"]["layers"][2]
    cosine, kept = f"{there['similarity_to_final']:.3f}", f"{there['nn_at_10']:.0%}"
    assert found["advice"].startswith(
        "Queries (`encode_query`) leave at layer 3 of 5, as the model's leap.json says: from there a vector of "
        f"these sentences has cosine {cosine} to full depth and keeps {kept} of its nearest neighbours."
    )
    assert found["advice"].endswith("Other sentences compute all layers, so an index stays as it is.")
    # Where sentences leave as well, both are said.
    both = examine_model("model", model, Sample("own", sentences), ExitRule(-1.0, 2))
    assert both["verdict"] == both["diagnosis"]["verdict"] != "never exits"
    assert "Queries (`encode_query`) leave at layer 3 of 5" in both["advice"]


def test_a_rule_that_does_not_fit_is_named(make_folder: MakeFolder, sentences: list[str], tmp_path: Path) -> None:
    file = write_sentences(tmp_path / "own.txt", sentences)
    page = tmp_path / "page.html"
    options = ["doctor", str(make_folder()), "--sentences", str(file), "--page", str(page)]
    done = CliRunner().invoke(app, [*options, "--min-layer", "9"])
    assert isinstance(done.exception, UserError)
    assert "min_layer 9 is not a layer of this model: 1 to 5" in str(done.exception)
    assert not page.exists()


def test_a_models_own_rule_is_taken(make_folder: MakeFolder, sentences: list[str], tmp_path: Path) -> None:
    folder = make_folder()
    (folder / "leap.json").write_text('{"exit": {"threshold": 0.9, "min_layer": 3, "patience": 2}}')
    rule = default_rule(LeapEncoder(folder, "cpu"))
    assert (rule.threshold, rule.min_layer, rule.patience) == (0.9, 3, 2)


@pytest.mark.parametrize("name", ["./nowhere", "no/such/folder"])
def test_a_model_that_is_nowhere_is_named(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", name, "--page", str(tmp_path / "page.html")])
    assert isinstance(done.exception, UserError)
    assert name in str(done.exception)
