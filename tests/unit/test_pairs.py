"""Scored pairs: the scale, the first pairs, and errors with file and row."""

from pathlib import Path

import numpy as np
import pytest

from leap.core.errors import UserError
from leap.core.settings.sources import LocalPairs, PairColumns
from leap.data.pairs import read_pairs, write_pairs

SIMILAR = "sentence1,sentence2,score\nA cat.,The  cat.,4.5\nA dog.,A\u00a0tree.,0\nOne.,Two.,5\n"
DUPLICATES = "id,question1,question2,label\n1,Why?,Why so?,1\n2,How?,Who?,0\n"


def load(folder: Path, content: str, source: LocalPairs) -> int:
    (folder / "pairs.csv").write_text(content, encoding="utf-8")
    return write_pairs("mine", source, folder, folder / "out" / "mine.parquet")


def test_pairs_come_back_in_order(tmp_path: Path) -> None:
    assert load(tmp_path, SIMILAR, LocalPairs(kind="local", path="pairs.csv")) == 3
    pairs = read_pairs(tmp_path / "out" / "mine.parquet")
    assert pairs.sentence1 == ["A cat.", "A dog.", "One."]
    assert pairs.sentence2 == ["The cat.", "A tree.", "Two."]
    assert pairs.scores.dtype == np.float64
    np.testing.assert_array_equal(pairs.scores, [4.5, 0.0, 5.0])


def test_duplicates_with_named_columns_and_the_first_pairs(tmp_path: Path) -> None:
    source = LocalPairs(
        kind="local",
        path="pairs.csv",
        task="duplicates",
        max_pairs=2,
        columns=PairColumns(sentence1="question1", sentence2="question2", score="label"),
    )
    # The third pair would be an error: only the first two are read.
    assert load(tmp_path, DUPLICATES + "3,What?,Where?,-1\n", source) == 2
    assert read_pairs(tmp_path / "out" / "mine.parquet").scores.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("line", "task", "message"),
    [
        ("A cat.,A dog.,5.1", "similarity", r"row 4, score: expected a number from 0 to 5 .*found '5.1'"),
        ("A cat.,A dog.,nan", "similarity", r"row 4, score: .*found 'nan'"),
        ("A cat.,A dog.,inf", "similarity", r"row 4, score: .*found 'inf'"),
        ("A cat.,A dog.,-0.5", "similarity", r"row 4, score: .*found '-0.5'"),
        ("A cat.,A dog.,", "similarity", r"row 4, score: .*found ''"),
        ("A cat., ,1", "similarity", r"row 4, sentence2: expected a sentence"),
        ("A cat.,A dog.,1", "duplicates", r"row 1, score: expected 0 or 1 .*found '4.5'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, task: str, message: str) -> None:
    source = LocalPairs.model_validate({"kind": "local", "path": "pairs.csv", "task": task})
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, SIMILAR + line + "\n", source)
    assert "pairs.csv" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_scores_that_rank_nothing_are_refused(tmp_path: Path) -> None:
    content = "sentence1,sentence2,score\nA.,B.,1\nC.,D.,1.0\n"
    with pytest.raises(UserError, match=r"similarity.mine: all 2 pairs have the score 1.0"):
        load(tmp_path, content, LocalPairs(kind="local", path="pairs.csv"))


def test_a_missing_set_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro extract"):
        read_pairs(tmp_path / "none.parquet")
