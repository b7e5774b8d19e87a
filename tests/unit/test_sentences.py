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
from leap.data.cleaning import EvaluationTexts, clean, fingerprint
from leap.extract.sample import write_sample
from leap.extract.unique_texts import COUNTS

TEXTS = [("web", f"This is the sentence with number {i} of the web.") for i in range(300)]

PACKAGE = {"kind": "package", "packages": ["numpy"]}


def sample(
    texts: list[tuple[str, str]],
    target: Path,
    *,
    limit: int | None = None,
    evaluation: EvaluationTexts | None = None,
    passages: PassageSettings | None = None,
    held_out: tuple[float, Path] | None = None,
    split: bool = False,
) -> tuple[list[tuple[str, str]], dict[str, dict[str, int]]]:
    counts = write_sample(
        [texts],
        target,
        seed=1,
        min_characters=20,
        max_characters=200,
        max_sentences=limit,
        evaluation=evaluation or EvaluationTexts(),
        split=split,
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


@pytest.mark.parametrize(
    "other",
    [
        "\u201cDON\u2019T use the well\u2010known caf\u00e9\u201d",
        "Don\u00b4t use the well\u00adknown caf\u00e9.",
        "Don\u2032t\u2003use\u00a0the\u202fwell\u2011known cafe\u0301 \u2014",
        "\uff24on't use the well\u2212known caf\u00e9\ufe0f\u200b",
    ],
)
def test_a_text_has_one_fingerprint_however_it_is_typed(other: str) -> None:
    assert fingerprint(other) == fingerprint("Don't use the well-known caf\u00e9!")


def test_fingerprints_of_different_words_differ() -> None:
    assert fingerprint("It is here now.") != fingerprint("It is here no")
    assert fingerprint("a text", seed=1) != fingerprint("a text", seed=2)
    assert fingerprint("?!") != fingerprint("...")
    assert fingerprint("\ud800 a") == fingerprint("A")


NUMBERS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
EVALUATED = [f"Whether it's the {number} one \u2013 or not - nobody knows." for number in NUMBERS]
PLANTED = [
    lambda text: text.replace("nobody", "no\u00adbody"),
    lambda text: text.replace("'", "\u2019").upper(),
    lambda text: text.replace(" ", "\u2009").replace("-", "\u2212"),
    lambda text: f"{text} The other sentence of the row is not evaluated.",
    lambda text: f"the other sentence of the row comes first; {text.lower()}",
    lambda text: f"A row without any stop {text.rstrip('.').replace('-', ' ')} goes on with more words",
]


def test_no_evaluation_text_is_trained_on_in_any_disguise(tmp_path: Path) -> None:
    rows = [("web", plant(text)) for text in EVALUATED for plant in PLANTED]
    assert len({text for _, text in rows}) == 60
    sampled, counts = sample([*rows, *TEXTS], tmp_path / "s.parquet", evaluation=EvaluationTexts(EVALUATED))
    assert counts["web"]["evaluation"] == 60
    assert sorted(sampled) == sorted((text, source) for source, text in TEXTS)


def test_short_evaluation_texts_and_parts_of_words_are_no_reason_to_leave_a_text_out() -> None:
    texts = EvaluationTexts(["Yes.", "python", "A dog is running through the grass."])
    assert not texts.occur_in("Do you want it? Yes. It is written in python.")
    assert not texts.occur_in("Today a dog is running through the grasshoppers.")
    assert texts.occur_in("Today a dog is running through the grass again.")
    assert not EvaluationTexts(["", "?"]).occur_in("Is it? - It is.")


def test_long_texts_are_split_into_sentences_if_asked_for(tmp_path: Path) -> None:
    document = " ".join(text for _, text in TEXTS[:9]) + " Short."
    rows, counts = sample([("book", document), ("web", "x" * 201)], tmp_path / "s.parquet", split=True)
    assert sorted(text for text, _ in rows) == sorted(text for _, text in TEXTS[:9])
    zero = dict.fromkeys(COUNTS, 0)
    assert counts["book"] == zero | {"split": 1, "read": 10, "too_short": 1, "kept": 9}
    assert counts["web"] == zero | {"read": 1, "too_long": 1}


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
    evaluation = EvaluationTexts(["THIS one is evaluated, so it goes"])
    rows, counts = sample(texts, tmp_path / "s.parquet", evaluation=evaluation)
    assert sorted(rows) == [
        ("A second sentence that is kept too.", "book"),
        ("A sentence that is kept in the end.", "web"),
    ]
    zero = dict.fromkeys(COUNTS, 0)
    assert counts == {
        "web": zero | {"read": 3, "too_short": 1, "duplicate": 1, "kept": 1},
        "book": zero | {"read": 4, "too_short": 1, "too_long": 1, "evaluation": 1, "kept": 1},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.parquet"]


def test_each_sentence_of_an_evaluation_document_is_evaluation_text() -> None:
    texts = EvaluationTexts(["The first sentence is here. The second one, e.g. this, is here too!"])
    assert texts.occur_in("the second one, e.g. this, is here too")
    assert texts.occur_in("The first sentence is here.")
    assert not texts.occur_in("The second one, e.g.")


def test_the_sample_does_not_depend_on_the_order_of_the_input(tmp_path: Path) -> None:
    doubled = [*TEXTS, *(("book", text.upper()) for _, text in TEXTS[:50])]
    first, counts = sample(doubled, tmp_path / "a.parquet", limit=100)
    random.Random(5).shuffle(doubled)
    second, _ = sample(doubled, tmp_path / "b.parquet", limit=100)
    assert first == second
    assert len(first) == 100
    total = {key: sum(count[key] for count in counts.values()) for key in COUNTS}
    assert total == {
        "split": 0,
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
    monkeypatch.setattr("leap.extract.sample.ROW_GROUP", 64)
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
