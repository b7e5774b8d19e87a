"""The sample of training sentences: clean, unique, free of evaluation texts, independent of the order."""

import random
import re
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leap.core.errors import UserError
from leap.core.settings.data import DataSettings, PassageSettings
from leap.data.cleaning import clean, evaluation_prints, fingerprint
from leap.extract import sample as sentences
from leap.extract.sample import write_sample

TEXTS = [("web", f"This is the sentence with number {i} of the web.") for i in range(300)]

PACKAGE = {"kind": "package", "packages": ["numpy"]}


def sample(
    texts: list[tuple[str, str]],
    target: Path,
    *,
    limit: int | None = None,
    evaluation: set[int] | None = None,
    passages: PassageSettings | None = None,
    held_out: tuple[float, Path] | None = None,
) -> tuple[list[tuple[str, str]], dict[str, dict[str, int]]]:
    counts = write_sample(
        texts,
        target,
        seed=1,
        min_characters=20,
        max_characters=200,
        max_sentences=limit,
        evaluation=evaluation or set(),
        passages=passages,
        held_out=held_out,
    )
    rows = pq.read_table(target).to_pylist()
    return [(row["sentence"], row["source"]) for row in rows], counts


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\ufeffA line\r\nand\x00 a\u00a0second\t one ", "A line and a second one"),
        ("half \ud83d of a pair", "half of a pair"),
        ("A\u030angstro\u0308m zero\u200bwidth", "\u00c5ngstr\u00f6m zerowidth"),
        ("\x00\r\n", ""),
    ],
)
def test_clean(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_clean_text_is_writable_and_stays_as_it_is(raw: str) -> None:
    text = clean(raw)
    text.encode("utf-8")
    assert clean(text) == text
    assert unicodedata.is_normalized("NFC", text)
    assert not {"\n", "\t", "\r", "\x00"} & set(text)


def test_fingerprints_ignore_case_and_punctuation_at_the_ends_only() -> None:
    assert fingerprint("Is it here?") == fingerprint("\u201cis it HERE")
    assert fingerprint("It is here, now.") != fingerprint("It is here now.")
    assert fingerprint("a text", seed=1) != fingerprint("a text", seed=2)
    assert fingerprint("?!") != fingerprint("...")


def test_counts_add_up_and_name_every_reason(tmp_path: Path) -> None:
    texts = [
        ("web", "A sentence that is kept in the end."),
        ("web", "a sentence  that is kept in the end"),  # the same
        ("web", "Exactly twenty chars"),  # 20: must be longer
        ("book", "This one is evaluated, so it goes."),
        ("book", "A second sentence that is kept too."),
        ("book", ""),
        ("book", "far too long " * 20),
    ]
    evaluation = evaluation_prints(["THIS one is evaluated, so it goes"])
    rows, counts = sample(texts, tmp_path / "s.parquet", evaluation=evaluation)
    assert sorted(rows) == [
        ("A second sentence that is kept too.", "book"),
        ("A sentence that is kept in the end.", "web"),
    ]
    zero = dict.fromkeys(sentences.COUNTS, 0)
    assert counts == {
        "web": zero | {"read": 3, "too_short": 1, "duplicate": 1, "kept": 1},
        "book": zero | {"read": 4, "too_short": 1, "too_long": 1, "evaluation": 1, "kept": 1},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.parquet"]


def test_each_sentence_of_an_evaluation_document_is_evaluation_text() -> None:
    prints = evaluation_prints(["The first sentence is here. The second one, e.g. this, is here too!"])
    assert fingerprint("the second one, e.g. this, is here too") in prints
    assert fingerprint("The first sentence is here.") in prints
    assert fingerprint("The second one, e.g.") not in prints


def test_the_sample_does_not_depend_on_the_order_of_the_input(tmp_path: Path) -> None:
    doubled = [*TEXTS, *(("book", text.upper()) for _, text in TEXTS[:50])]
    first, counts = sample(doubled, tmp_path / "a.parquet", limit=100)
    random.Random(5).shuffle(doubled)
    second, _ = sample(doubled, tmp_path / "b.parquet", limit=100)
    assert first == second
    assert len(first) == 100
    total = {key: sum(count[key] for count in counts.values()) for key in sentences.COUNTS}
    assert total == {
        "read": 350,
        "too_short": 0,
        "too_long": 0,
        "evaluation": 0,
        "duplicate": 50,
        "held_out": 0,
        "not_sampled": 200,
        "kept": 100,
        "passages": 0,
    }


def test_a_smaller_sample_is_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    small, _ = sample(TEXTS, tmp_path / "a.parquet", limit=40)
    large, _ = sample(TEXTS, tmp_path / "b.parquet")
    assert large[:40] == small
    assert large != TEXTS


def test_row_groups_bound_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "ROW_GROUP", 64)
    rows, _ = sample(TEXTS, tmp_path / "a.parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 5
    assert sorted(text for text, _ in rows) == sorted(text for _, text in TEXTS)


def test_nothing_left_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no sentence is left.*'too_short': 1"):
        sample([("web", "short")], tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_passages_join_sentences_of_one_source_that_came_before(tmp_path: Path) -> None:
    texts = [*TEXTS, *(("book", f"a line {i} of a book without an end") for i in range(300))]
    alone, _ = sample(texts, tmp_path / "a.parquet")
    settings = PassageSettings(share=0.2, sentences=(2, 4))
    rows, counts = sample(texts, tmp_path / "b.parquet", passages=settings)
    assert [row for row in rows if row in alone] == alone
    source_of = {text if text.endswith(".") else f"{text}.": source for text, source in alone}
    sizes = []
    for place, (text, source) in enumerate(rows):
        if (text, source) not in alone:
            before = [f"{t.rstrip('.')}." for t, s in rows[:place] if s == source and (t, s) in alone]
            parts = re.findall(r".+?\.(?= |$)", text)
            parts = [part.strip() for part in parts]
            assert parts == before[-len(parts) :]
            assert {source_of[part] for part in parts} == {source}
            sizes.append(len(parts))
    assert {2, 3, 4} == set(sizes)
    assert 80 <= len(sizes) <= 160
    assert len(sizes) == sum(count["passages"] for count in counts.values())
    assert rows == sample(texts[::-1], tmp_path / "c.parquet", passages=settings)[0]


def test_the_longest_text_is_that_of_a_passage() -> None:
    data = {"folder": "x", "seed": 1, "min_characters": 1, "max_characters": 30, "sources": {"a": PACKAGE}}
    assert DataSettings.model_validate(data).longest_text == 30
    joined = DataSettings.model_validate({**data, "passages": {"share": 1, "sentences": [2, 3]}})
    text = " ".join(["x" * 30 + "."] * 3)
    assert len(text) <= joined.longest_text <= len(text) + 3
    with pytest.raises(ValidationError, match="the least comes first"):
        DataSettings.model_validate({**data, "passages": {"share": 1, "sentences": [3, 2]}})


def test_a_share_is_held_out_of_the_sample(tmp_path: Path) -> None:
    aside = tmp_path / "held_out.parquet"
    rows, counts = sample(TEXTS, tmp_path / "a.parquet", limit=100, held_out=(0.25, aside))
    held_out = [(row["sentence"], row["source"]) for row in pq.read_table(aside).to_pylist()]
    assert len(rows) == counts["web"]["kept"] == 100
    assert 20 <= len(held_out) == counts["web"]["held_out"] <= 50
    assert not set(rows) & set(held_out)
    count = counts["web"]
    assert count["read"] == count["kept"] + count["held_out"] + count["not_sampled"] == 300
    whole = sample(TEXTS, tmp_path / "b.parquet", held_out=(0.25, aside))[0]
    assert whole[:100] == rows
    sample(TEXTS, tmp_path / "c.parquet", held_out=(0.0, aside))
    assert pq.read_table(aside).num_rows == 0
