"""`leap init`: what a folder's files are, by their first rows, and settings that run on them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.core.settings import parse_settings
from leap.core.settings.profiles import start_from
from leap.extract.initial_settings import COPIED, changes_for, column_names, look_at
from leap.validate.inputs import check_inputs

PROFILES = Path(__file__).parents[2] / "profiles"
TITLES = [f"A title of the ticket number {i}" for i in range(900)]
MORE = "Then comes another sentence, the one with the number {i}. " * 4
BODIES = [f"The first sentence of body {i} is here. {MORE}".replace("{i}", str(i)) for i in range(900)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "My inputs"
    (root / "beir" / "help" / "qrels").mkdir(parents=True)
    pd.DataFrame({"id": range(900), "title": TITLES, "body": BODIES}).to_csv(
        root / "Tickets.CSV", sep=";", index=False
    )
    pairs = pd.DataFrame(
        {"text_a": TITLES[:50], "text_b": TITLES[50:100], "similarity": [i / 10 for i in range(50)]}
    )
    pairs.to_json(root / "scored.jsonl", orient="records", lines=True)
    (root / "beir/help/corpus.jsonl").write_text(json.dumps({"_id": "d", "text": "a b c"}))
    (root / "beir/help/queries.jsonl").write_text(json.dumps({"_id": "q", "text": "a b"}))
    (root / "beir/help/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    pd.DataFrame({"id": range(3)}).to_parquet(root / "ids.parquet")
    (root / "notes.docx").write_bytes(b"x")
    (root / "._Tickets.CSV").write_bytes(b"\x00")
    return root


def test_text_pairs_and_collections_are_told_apart(folder: Path) -> None:
    result = look_at(folder)
    assert result.sources == {"tickets": {"kind": "local", "path": "Tickets.CSV", "columns": ["title", "body"]}}
    columns = {"sentence1": "text_a", "sentence2": "text_b", "score": "similarity"}
    scored = {"kind": "local", "path": "scored.jsonl", "task": "similarity", "columns": columns}
    assert result.pairs == {"scored": scored}
    assert result.collections == {"help": {"kind": "local", "path": "beir/help"}}
    assert result.passed_over["ids.parquet"] == "no column of sentences among id"
    assert set(result.passed_over) == {"ids.parquet", "notes.docx"}
    assert (result.rows, len(result.texts)) == (1800, 1800)


def test_the_settings_are_valid_name_the_data_and_say_what_is_dropped(folder: Path, tmp_path: Path) -> None:
    changes, lines = changes_for(look_at(folder), folder)
    start_from(changes, "mine", tmp_path / "params.yaml", PROFILES)
    text = (tmp_path / "params.yaml").read_text()
    settings = parse_settings(YAML(typ="safe").load(text), "mine")
    assert set(settings.data.sources) == {"tickets"}
    assert set(settings.similarity) == {"scored"}
    assert settings.evaluation.primary_set == "scored"
    assert set(settings.retrieval) == {"help"}
    assert settings.registered_model == settings.experiment == "leap-tickets"  # not the demo's
    assert settings.data.max_characters == 100
    assert "50% of the texts are longer than data.max_characters 100: they are split into sentences" in "\n".join(
        lines
    )
    assert "# theta" in text  # the comments are there
    with pytest.raises(UserError, match="--force replaces them"):
        start_from(changes | {"seeds": [2]}, "mine", tmp_path / "params.yaml", PROFILES)


def test_long_sentences_are_trained_at_their_length(tmp_path: Path) -> None:
    sentence = "This sentence of a report goes on and on " + "about one thing and another " * 11 + "to its end {}."
    (tmp_path / "a.txt").write_text("\n".join(sentence.format(i) for i in range(900)))
    changes, _ = changes_for(look_at(tmp_path), tmp_path)
    assert changes["data"]["max_characters"] == 500
    assert changes["train"] == {"max_length": 128}


def test_few_sentences_are_not_asked_to_calibrate(tmp_path: Path) -> None:
    root = tmp_path / "few"
    root.mkdir()
    (root / "a.txt").write_text("\n".join(TITLES[:200]))
    changes, _ = changes_for(look_at(root), root)
    assert changes["exit"] == {"calibration": None}
    assert changes["data"]["max_sentences"] == 140
    start_from(changes, "mine", tmp_path / "params.yaml", PROFILES)


def test_a_folder_without_scored_pairs_gets_the_bundled_ones(tmp_path: Path) -> None:
    root = tmp_path / "few"
    root.mkdir()
    (root / "a.txt").write_text("\n".join(TITLES))
    options = ["init", str(root), "--params", str(tmp_path / "params.yaml")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PROFILES.parent)
        done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.exception
    assert f"copied to {root / COPIED}: put your own there" in done.output
    settings = parse_settings(YAML(typ="safe").load((tmp_path / "params.yaml").read_text()), "mine")
    check_inputs(settings)  # all that the settings name is there
    assert list(settings.similarity) == [settings.evaluation.primary_set] == ["software_pairs"]
    assert not look_at(root).lacks_pairs  # the next time they are found


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "text|label\na|b\n", ["text", "label"]),
        ("a.tsv", "x\ty,z\n", ["x", "y,z"]),
        ("a.json", '[\n{"a": 1,\n "b": 2}]', None),
        ("a.jsonl", '\n{"a": 1, "b": 2}\n', ["a", "b"]),
        ("a.txt", "x", ["text"]),
    ],
)
def test_columns_of_every_form(tmp_path: Path, name: str, content: str, columns: Any) -> None:
    (tmp_path / name).write_text(content)
    if columns is None:
        with pytest.raises(UserError, match="not readable"):
            column_names(tmp_path / name)
    else:
        assert column_names(tmp_path / name) == columns


def test_a_folder_without_text_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.docx").write_bytes(b"x")
    with pytest.raises(UserError, match=r"holds no text to train on \(notes.docx: no form that is read\)"):
        look_at(tmp_path)
