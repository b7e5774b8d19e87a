import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_evidence import made_settings, write_evidence
from scipy.stats import pearsonr, spearmanr

from leap.core.errors import UserError
from leap.evaluate.likeness import likeness, row_correlations
from leap.evidence.evidence_file import write_evidence as write_evidence_file
from leap.evidence.rivals import against_rivals, compare, mean_difference, spearman_difference
from leap.evidence.score_table import read_scores, write_scores
from leap.exits.neighbours import neighbours, overlap


def test_tables_come_back_as_they_were(tmp_path: Path) -> None:
    columns = {"query": ["a", "é"], "layer": np.array([6, 7]), "score": np.array([1 / 3, 0.5])}
    write_scores(tmp_path / "sts" / "x.parquet", columns)
    write_evidence_file(tmp_path / "sts" / "x.json", {})
    result = read_scores(tmp_path / "sts" / "x.parquet")
    assert result["query"].tolist() == ["a", "é"]
    assert result["layer"].tolist() == [6, 7]
    assert result["score"].tolist() == [0.333333333, 0.5]


def test_a_missing_or_damaged_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.parquet is missing: `dvc repro`"):
        read_scores(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"x\.json is missing"):
        read_scores(tmp_path / "x.parquet")
    write_evidence_file(tmp_path / "x.json", {})
    with pytest.raises(UserError, match="not a readable table"):
        read_scores(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 another")
    with pytest.raises(UserError, match=r"x\.parquet is not the table that .*x\.json was written with"):
        read_scores(tmp_path / "x.parquet")


def test_a_difference_of_means_by_hand() -> None:
    result = mean_difference(np.array([0.5, 0.7, 0.9]), np.array([0.4, 0.7, 0.5]), 500, 1)
    assert result["difference"] == pytest.approx(0.5 / 3)
    assert result["ci95"] == pytest.approx([0.0, 0.4])
    # Only resamples of the second row alone, one in 27, have no difference.
    assert result["p_value"] == pytest.approx(2 / 27, abs=0.03)


def test_rows_are_paired() -> None:
    # Two models that share their noise differ surely, though their own intervals overlap widely.
    generator = np.random.default_rng(0)
    scores = generator.normal(size=400)
    noise = generator.normal(size=400) * 2
    better, worse = scores + noise, scores + noise * 1.1
    result = spearman_difference(better, worse, scores, 500, 1)
    expected = spearmanr(better, scores).statistic - spearmanr(worse, scores).statistic
    assert result["difference"] == pytest.approx(expected)
    assert result["ci95"][0] > 0
    assert result["p_value"] == pytest.approx(2 / 501)
    turned = spearman_difference(worse, better, scores, 500, 1)
    assert turned["difference"] == -result["difference"]
    assert turned["p_value"] == result["p_value"]


def test_no_difference_is_found_by_chance_once_in_twenty() -> None:
    generator = np.random.default_rng(3)
    result = 0
    for seed in range(200):
        scores, one, two = generator.normal(size=(3, 60))
        result += spearman_difference(scores + one, scores + two, scores, 200, seed)["p_value"] < 0.05
    # Binomial(200, 0.05): more than 20 once in a thousand.
    assert 2 <= result <= 20


def test_a_model_against_itself() -> None:
    values, scores = np.random.default_rng(0).random((2, 30))
    result = spearman_difference(values, values, scores, 100, 1)
    assert (result["difference"], result["ci95"], result["p_value"]) == (0.0, [0.0, 0.0], 1.0)


def write_variant(folder: Path, shift: float, rows: int = 40) -> None:
    generator = np.random.default_rng(1)
    scores, noise = generator.random((2, rows))
    cosines = scores + noise + shift * generator.random(rows)
    pairs = {"score": scores, "cosine_full": cosines, "cosine_exit": scores}
    write_scores(folder / "sts" / "stsb.parquet", pairs)
    queries = {
        "query": [f"q{n}" for n in range(rows)],
        "ndcg_at_10_full": noise,
        "ndcg_at_10_exit": noise + shift,
    }
    write_scores(folder / "retrieval" / "scifact.parquet", queries)
    sentences = {"sentence": [f"s{n}" for n in range(rows)]}
    figures = ("teacher_nn_at_10", "teacher_similarity")
    columns = {f"{name}_{mode}": noise + shift for name in figures for mode in ("full", "exit")}
    write_scores(folder / "diagnose.parquet", {**sentences, **columns})
    for name in ("sts/stsb", "retrieval/scifact", "diagnose"):
        write_evidence_file(folder / f"{name}.json", {})


def test_every_kind_of_evidence_is_compared(tmp_path: Path) -> None:
    write_variant(tmp_path / "leap-1", 0.1)
    write_variant(tmp_path / "fixed_depth-1", 0.0)
    outcome = compare(tmp_path / "leap-1", tmp_path / "fixed_depth-1", ["stsb"], ["scifact"], 200, 1)
    assert outcome["sts"]["stsb"]["exit"]["difference"] > 0.1
    assert abs(outcome["sts"]["stsb"]["full"]["difference"]) < 0.1
    assert outcome["retrieval"]["scifact"]["exit"]["difference"] == pytest.approx(0.1)
    assert outcome["retrieval"]["scifact"]["full"]["difference"] == 0.0
    assert outcome["teacher_nn_at_10"]["exit"]["difference"] == pytest.approx(0.1)
    assert outcome["teacher_similarity"]["full"]["difference"] == pytest.approx(0.1)


def test_other_rows_are_refused(tmp_path: Path) -> None:
    write_variant(tmp_path / "leap-1", 0.1)
    write_variant(tmp_path / "fixed_depth-1", 0.0, rows=39)
    with pytest.raises(UserError, match=r"stsb\.parquet were measured on different data"):
        compare(tmp_path / "leap-1", tmp_path / "fixed_depth-1", ["stsb"], [], 200, 1)


def test_the_gates_rivals_of_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings()
    for variant in ("leap", "baseline", "fixed_depth"):
        write_evidence(tmp_path, settings, variant)
    result = against_rivals(settings, "leap", 1)
    assert set(result) == {"baseline", "fixed_depth"}
    assert result["fixed_depth"]["variant"] == "fixed_depth"
    assert set(result["fixed_depth"]["retrieval"]) == set(settings.retrieval)
    assert set(against_rivals(settings, "baseline", 1)) == {"fixed_depth"}
    json.dumps(result, allow_nan=False)
    alone = made_settings(gate={"baseline": None, "fixed_depth": None})
    assert against_rivals(alone, "leap", 1) == {}


def test_likeness_by_its_slow_twin() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, teacher = torch.randn(30, 6, generator=generator), torch.randn(30, 9, generator=generator)
    result = likeness(vectors, teacher, 5)
    assert result.neighbours.tolist() == overlap(neighbours(vectors, 5), neighbours(teacher, 5)).tolist()
    unit, other = (torch.nn.functional.normalize(v.double(), dim=1) for v in (vectors, teacher))
    for row in (0, 17, 29):
        others = [n for n in range(30) if n != row]
        expected = pearsonr((unit[row] @ unit.T)[others], (other[row] @ other.T)[others]).statistic
        assert result.similarity[row] == pytest.approx(expected)
    assert set(result.figures("exit")) == {"nn_at_10_exit", "similarity_exit"}


def test_likeness_sees_through_a_rotation_and_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(30, 6, generator=generator)
    turned = 3 * vectors @ torch.linalg.qr(torch.randn(9, 9, generator=generator))[0][:6]
    monkeypatch.setattr("leap.evaluate.likeness.BLOCK", 7)
    assert row_correlations(vectors, turned).numpy() == pytest.approx(np.ones(30))
    assert likeness(vectors, turned, 5).neighbours.tolist() == [1.0] * 30
    assert row_correlations(torch.ones(5, 2), vectors[:5]).tolist() == [0.0] * 5
