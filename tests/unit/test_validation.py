"""Great Expectations on the sentences: each rule fails on what it is for, and only that rule."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from leap.core.errors import UserError
from leap.data.cleaning import EvaluationTexts
from leap.validate.expectations import (
    JUDGEMENT,
    PAIR,
    TABLE,
    Suite,
    add_table,
    collection_rules,
    pair_rules,
    sentence_rules,
    validate,
    write_table,
)

GOOD = [f"The sentence {word} is one of the good ones." for word in "abcdefghijklmnopqrst"]
LENGTH = "expect_column_value_lengths_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.enable_truncation(4)  # as a saved tokenizer may have it: it must not hide long sentences
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def frame(sentences: list[str], source: str = "web") -> pd.DataFrame:
    return pd.DataFrame({"sentence": sentences, "source": [source] * len(sentences)}, dtype="str")


def run(
    data: pd.DataFrame, tokenizer: Path, docs: Path, max_truncated: float = 0.0, own: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    evaluation = EvaluationTexts(["A text that is evaluated is not trained on."])
    folder = docs.parent
    folder.mkdir(exist_ok=True)
    data.to_parquet(folder / "sentences.parquet")
    file, made = folder / "table.db", Tokenizer.from_file(str(tokenizer))
    assert write_table(folder / "sentences.parquet", file, evaluation, made, 10) == len(data)
    rules = sentence_rules(20, (21, 60), 0.95, max_truncated, ["web", "book"])
    return validate(file, [Suite("sentences", TABLE, [*rules, *own])], docs)


def failed(results: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(result["expectation"], result["column"]) for result in results if not result["passed"]]


def test_good_sentences_pass_and_the_docs_open(tmp_path: Path, tokenizer: Path) -> None:
    docs = tmp_path / "reports" / "data_docs"
    results = run(frame(GOOD), tokenizer, docs)
    assert failed(results) == []
    assert results[0]["expectation"] == "expect_table_row_count_to_be_between"
    assert results[0]["observed"] == 20
    assert len(results) == 12
    page = (docs / "index.html").read_text(encoding="utf-8")
    (validation,) = docs.glob("validations/**/*.html")
    assert validation.relative_to(docs).as_posix() in page
    # No path of this machine in what is published.
    assert str(tmp_path) not in page + validation.read_text(encoding="utf-8")
    # Nothing is loaded from elsewhere, and no advertisement.
    for html in docs.rglob("*.html"):
        text = html.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|<link[^>]*href)=.https?:|url\(.?https?:|newsletter", text), html
    assert "all 12 expectations passed" in page
    assert not logging.getLogger("great_expectations").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (GOOD[:5], [("expect_table_row_count_to_be_between", None)]),
        ([*GOOD, "Only twenty letters."], [(LENGTH, "sentence")]),
        ([*GOOD, "The sentence " + "x" * 50 + "."], [(LENGTH, "sentence")]),
        ([*GOOD, GOOD[0]], [("expect_column_values_to_be_unique", "sentence")]),
        ([*GOOD, "1234567890 1234567890 12", "123 456 789 012 345 67 89"],
         [("expect_column_values_to_be_between", "letters")]),
        ([*GOOD, "a text THAT is evaluated is not trained on"], [(IN_SET, "leaked")]),
        ([*GOOD, "This one has eleven tokens so it is cut at ten."], [(IN_SET, "truncated")]),
    ],
)  # fmt: skip
def test_each_rule_fails_alone(
    tmp_path: Path, tokenizer: Path, sentences: list[str], expected: list[tuple[str, str | None]]
) -> None:
    assert failed(run(frame(sentences), tokenizer, tmp_path / "docs")) == expected
    assert (tmp_path / "docs" / "index.html").is_file()


def test_a_share_of_long_sentences_is_allowed(tmp_path: Path, tokenizer: Path) -> None:
    data = frame([*GOOD, "This one has eleven tokens so it is cut at ten."])
    assert failed(run(data, tokenizer, tmp_path / "docs", max_truncated=0.05)) == []


def test_an_unknown_source_fails(tmp_path: Path, tokenizer: Path) -> None:
    results = run(frame(GOOD, source="elsewhere"), tokenizer, tmp_path / "docs")
    assert failed(results) == [(IN_SET, "source")]
    observed = next(result["observed"] for result in results if not result["passed"])
    assert observed["unexpected"] == observed["of"] == 20
    assert set(observed["examples"]) == {"elsewhere"}


def test_a_missing_column_fails_with_what_is_wrong(tmp_path: Path, tokenizer: Path) -> None:
    results = run(frame(GOOD).drop(columns="sentence"), tokenizer, tmp_path / "docs")
    broken = [(result["column"], result["observed"]) for result in results if not result["passed"]]
    assert (None, ["source"]) in broken
    assert any(column == "sentence" and 'column "sentence"' in str(observed) for column, observed in broken)
    assert ("source", "expect_column_values_to_not_be_null") not in failed(results)


def test_nulls_fail(tmp_path: Path, tokenizer: Path) -> None:
    data = frame(GOOD)
    data.loc[3, "sentence"] = None
    assert ("expect_column_values_to_not_be_null", "sentence") in failed(run(data, tokenizer, tmp_path / "docs"))


def test_reading_says_what_is_missing_or_damaged(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    for name, message in (
        ("none", "is missing: `dvc repro extract`"),
        ("bad", "not a readable parquet file"),
    ):
        made = Tokenizer.from_file(str(tokenizer))
        with pytest.raises(UserError, match=message):
            write_table(tmp_path / f"{name}.parquet", tmp_path / f"{name}.db", EvaluationTexts(), made, 10)


@pytest.mark.parametrize(
    "text",
    ["A text that is evalu\u00adated is not\u2003trained on", "Well. a TEXT that is evaluated is not trained on"],
)
def test_an_evaluation_text_in_disguise_is_seen_as_a_leak(tmp_path: Path, tokenizer: Path, text: str) -> None:
    results = run(frame([*GOOD, text]), tokenizer, tmp_path / "docs", max_truncated=0.2)
    assert failed(results) == [(IN_SET, "leaked")]


def test_expectations_of_the_settings_are_great_expectations_own(tmp_path: Path, tokenizer: Path) -> None:
    name = "expect_column_values_to_not_match_regex"
    own = [(name, {"column": "sentence", "regex": "sentence c"})]
    results = run(frame(GOOD), tokenizer, tmp_path / "docs", own=own)
    assert failed(results) == [(name, "sentence")]
    assert "1 of 13 expectations failed" in (tmp_path / "docs" / "index.html").read_text(encoding="utf-8")
    for unknown in (("expect_nothing_at_all", {}), (name, {"column": "sentence"})):
        with pytest.raises(UserError, match=f"validation.expectations: .*{unknown[0]}"):
            run(frame(GOOD), tokenizer, tmp_path / f"docs-{len(unknown[1])}" / "docs", own=[unknown])


def test_pairs_and_collections_have_suites_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "table.db"
    add_table(file, "pairs_stsb", PAIR, [("a", "b", 1.0), ("c", "", 6.0)])
    add_table(file, "collection_x", JUDGEMENT, [("q", "text", "d", "text", 1), ("q", "text", "d", None, 1)])
    suites = [
        Suite("pairs_stsb", "pairs_stsb", pair_rules(5.0)),
        Suite("collection_x", "collection_x", collection_rules(2)),
    ]
    results = validate(file, suites, tmp_path / "docs")
    assert {(entry["suite"], entry["column"]) for entry in results if not entry["passed"]} == {
        ("pairs_stsb", "sentence2"),
        ("pairs_stsb", "score"),
        ("collection_x", "query_id"),
        ("collection_x", None),
    }
    assert len(list((tmp_path / "docs").glob("validations/*/extract/*/*.html"))) == 2
