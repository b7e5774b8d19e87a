"""Rows of local and hub files, and what is said of files that cannot be read."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leap.core.errors import UserError
from leap.core.settings.sources import HubFiles, LocalFiles, LocalText
from leap.data.tables import file_rows, local_files, source_rows
from leap.extract.training_texts import training_texts

ROWS = [("one, two", "a"), ('the "third"', "b"), ("fünf", "c")]


def write(path: Path) -> None:
    frame = pd.DataFrame(ROWS, columns=["text", "name"])
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False, encoding="utf-8-sig", lineterminator="\r\n")
    elif path.suffix == ".tsv":
        lines = ["text\tname", *("\t".join(row) for row in ROWS)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        text = frame.to_json(orient="records", lines=True, force_ascii=False)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "t.jsonl", "t.jsonl.gz"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    rows = list(file_rows(tmp_path / name, ("name", "text"), optional=("title",)))
    assert [row.values for row in rows] == [(name, text, None) for text, name in ROWS]
    assert [row.number for row in rows] == [1, 2, 3]
    assert rows[0].file == str(tmp_path / name)


def test_a_txt_file_has_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbffirst\r\n\r\nsecond")
    assert [row.values for row in file_rows(tmp_path / "t.txt", ["text"])] == [("first",), ("second",)]


def test_a_csv_field_may_hold_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('text,name\n"two\nlines",a\n', encoding="utf-8")
    assert next(iter(file_rows(tmp_path / "t.csv", ["text"]))).values == ("two\nlines",)


def test_a_pattern_reads_all_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}", encoding="utf-8")
    rows = source_rows(LocalFiles(kind="local", path="*.txt"), ["text"], tmp_path)
    assert [row.values[0] for row in rows] == ["text of a", "text of b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "has no rows"),
        ("t.csv", b"text,name\n", "has no rows"),
        ("t.csv", b"words,name\na,b\n", "no column text: its columns are words, name"),
        ("t.csv", b"text,name\na\n", "row 1: 1 fields, the header has 2"),
        ("t.csv", b'text,name\n"a,b\n', "not well-formed"),
        ("t.csv", "text\nfünf\n".encode("latin-1"), "not UTF-8 .byte 0xfc"),
        ("t.jsonl", b'{"words": "a"}\n', "line 1 has no key text, its keys are words"),
        ("t.jsonl", b'{"text": "a"}\n{"text"\n', "line 2: not JSON"),
        ("t.jsonl", b"[1]\n", "line 1: expected a JSON object"),
        ("t.jsonl", b'{"text": "a", "text": "b"}\n', "line 1: not JSON .the key 'text' is there twice"),
        ("t.csv", b"text,name,text\na,b,c\n", "has the column text 2 times: rename all but one"),
        ("t.jsonl.gz", b'{"text": "a"}\n', "is damaged"),
        ("t.parquet", b"", "not a readable parquet file"),
        ("t.parquet", b"PAR1 but no more", "not a readable parquet file"),
        ("t.xlsx", b"", r"cannot read .xlsx, only .parquet, .csv, .tsv, .jsonl, .ndjson, .json, .txt"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(file_rows(tmp_path / name, ["text"]))
    assert str(tmp_path / name) in str(caught.value)


def test_a_missing_parquet_column_is_named(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet")
    with pytest.raises(UserError, match="no column sentence: its columns are text, name"):
        list(file_rows(tmp_path / "t.parquet", ["sentence"]))


def test_two_parquet_columns_of_one_name_are_refused_only_where_they_are_read(tmp_path: Path) -> None:
    table = pa.table([["a"], ["b"], ["c"]], names=["text", "text", "name"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"t\.parquet has the column text 2 times"):
        list(file_rows(tmp_path / "t.parquet", ["text"]))
    assert [row.values for row in file_rows(tmp_path / "t.parquet", ["name"])] == [("c",)]


@pytest.mark.parametrize("content", [b"", b"text,name\n"])
def test_a_part_without_rows_is_passed_over_if_another_has_some(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    source = LocalFiles(kind="local", path="*.csv")
    (tmp_path / "part-0.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"part-0\.csv: no rows; expected at least one with text"):
        list(source_rows(source, ["text"], tmp_path))
    (tmp_path / "part-1.csv").write_text("text,name\na,b\n", encoding="utf-8")
    assert [row.values for row in source_rows(source, ["text"], tmp_path)] == [("a",)]
    assert "1 of 2 files have no rows" in caplog.text


def test_a_parquet_part_without_rows_is_passed_over(tmp_path: Path) -> None:
    pd.DataFrame({"text": pd.Series([], dtype="str")}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"text": ["one"]}).to_parquet(tmp_path / "b.parquet")
    rows = source_rows(LocalFiles(kind="local", path="*.parquet"), ["text"], tmp_path)
    assert [row.values for row in rows] == [("one",)]


@pytest.mark.parametrize("name", ["T.CSV", "t.JSONL", "t.ndjson", "t.json", "T.JSONL.GZ", "T.Parquet"])
def test_endings_are_read_in_any_case_and_by_their_other_names(tmp_path: Path, name: str) -> None:
    write(tmp_path / name.lower().replace(".ndjson", ".jsonl").replace(".json.", ".jsonl."))
    made = next(tmp_path.iterdir())
    made.rename(tmp_path / name)
    assert [row.values for row in file_rows(tmp_path / name, ["text"])] == [(text,) for text, _ in ROWS]


def test_a_json_array_is_read_as_rows(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(' \n[{"text": "one"},\n {"text": null}]', encoding="utf-8")
    assert [row.values for row in file_rows(tmp_path / "t.json", ["text"])] == [("one",), (None,)]


def test_hidden_files_are_not_matched_by_a_pattern(tmp_path: Path) -> None:
    for name in ("a.csv", "._a.csv", ".~lock.csv", "__MACOSX/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\nx\n", encoding="utf-8")
    assert local_files("**/*.csv", tmp_path) == [tmp_path / "a.csv"]
    assert local_files("._a.csv", tmp_path) == [tmp_path / "._a.csv"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_recognised_by_its_columns(tmp_path: Path, delimiter: str) -> None:
    pd.DataFrame(ROWS, columns=["text", "name"]).to_csv(tmp_path / "t.csv", index=False, sep=delimiter)
    assert [row.values for row in file_rows(tmp_path / "t.csv", ["text", "name"])] == ROWS
    with pytest.raises(UserError, match="has no column score: its columns are text, name"):
        list(file_rows(tmp_path / "t.csv", ["score"]))


def test_quotes_that_a_backslash_escapes_are_read_as_spark_writes_them(tmp_path: Path) -> None:
    content = 'text,name\n"he said \\"no, thanks\\", and left",a\nplain,b\n'
    (tmp_path / "t.csv").write_text(content, encoding="utf-8")
    rows = [row.values for row in file_rows(tmp_path / "t.csv", ["text", "name"])]
    assert rows == [('he said "no, thanks", and left', "a"), ("plain", "b")]
    # A path that ends in a backslash is no escaped quote.
    (tmp_path / "t.csv").write_text('text,name\n"C:\\",a\n"a ""b""",c\n', encoding="utf-8")
    rows = [row.values for row in file_rows(tmp_path / "t.csv", ["text", "name"])]
    assert rows == [("C:\\", "a"), ('a "b"', "c")]


@pytest.mark.parametrize("value", [1, 1.5, True, ["a"], {"a": 1}, "9" * 4000])
def test_values_that_are_no_text_are_named_with_file_row_and_column(tmp_path: Path, value: Any) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": value}), encoding="utf-8")
    source = LocalText(kind="local", path="t.jsonl")
    texts = training_texts({"mine": source}, tmp_path)
    if isinstance(value, str):
        assert list(texts) == [("mine", value)]
        return
    with pytest.raises(UserError, match=r"t\.jsonl, row 1, text: expected text, found") as caught:
        list(texts)
    assert len(str(caught.value)) < len(str(tmp_path)) + 120


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.csv"])
def test_a_null_is_an_empty_text_in_every_form(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"text": [None, "one"], "name": ["a", "b"]})
    if name == "t.jsonl":
        frame.to_json(tmp_path / name, orient="records", lines=True)
    elif name == "t.csv":
        frame.to_csv(tmp_path / name, index=False)
    else:
        frame.to_parquet(tmp_path / name)
    rows = list(file_rows(tmp_path / name, ["text"]))
    assert [row.text(0, "text") for row in rows] == ["", "one"]


def test_paths_stay_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    with pytest.raises(UserError, match=r"leaves data\.folder"):
        local_files("x/../../secret.txt", folder)
    with pytest.raises(UserError, match=r"absolute.*set data.folder"):
        local_files(str(tmp_path / "secret.txt"), folder)
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert local_files("./link.txt", folder) == [folder / "link.txt"]


def test_missing_files_folders_and_patterns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file matches 'x/.*parquet' in data\.folder"):
        local_files("x/*.parquet", tmp_path)
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"is a folder.*x/\*.parquet"):
        local_files("x", tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        local_files("x.txt", tmp_path / "none")


def test_an_arrow_folder_is_read_as_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": [text for text, _ in ROWS], "name": ["a", "b", None]})
    made.save_to_disk(str(tmp_path / "saved"))
    source = LocalFiles(kind="local", path="saved")
    rows = list(source_rows(source, ["name", "text"], tmp_path))
    assert [row.values for row in rows] == [("a", ROWS[0][0]), ("b", ROWS[1][0]), (None, ROWS[2][0])]
    assert rows[2].number == 3
    with pytest.raises(UserError, match=r"saved has no column words: its columns are text, name"):
        list(source_rows(source, ["words"], tmp_path))
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(UserError, match=r"both holds the splits test, train: name one of these folders"):
        list(source_rows(LocalFiles(kind="local", path="both"), ["text"], tmp_path))
    assert len(list(source_rows(LocalFiles(kind="local", path="both/test"), ["text"], tmp_path))) == 3
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"no arrow")
    with pytest.raises(UserError, match="saved is not a readable Arrow folder"):
        list(source_rows(source, ["text"], tmp_path))


def test_a_hub_out_of_reach_is_one_error_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = HubFiles(kind="hub", repo="someone/texts", revision="0" * 40, config="en", streaming=True)
    calls: list[str] = []

    def info(self: object, repo: str, **options: Any) -> None:
        calls.append(repo)
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    with pytest.raises(UserError, match=r"someone/texts at commit 0{40} .*cannot be reached.*kind: local"):
        list(source_rows(hub, ["text"], Path("unused")))
    assert calls == ["someone/texts"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_data_set_of_the_hub_is_read_in_batches(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    read: list[int] = []
    asked: dict[str, Any] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(10):
            read.append(number)
            yield {"text": f"row {number}", "name": str(number)}

    def load(repo: str, config: str, **options: Any) -> Any:
        asked.update(options, repo=repo, config=config)
        if streaming:
            return datasets.IterableDataset.from_generator(rows)
        return datasets.Dataset.from_list(list(rows()))

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("leap.data.dataset_rows.ask_hub", lambda *_: None)
    monkeypatch.setattr("leap.data.dataset_rows.BATCH_ROWS", 3)
    hub = HubFiles(
        kind="hub", repo="someone/texts", revision="1" * 40, config="en", split="train", streaming=streaming
    )
    result = source_rows(hub, ["name", "text"], Path("unused"))
    assert next(result).values == ("0", "row 0")
    assert len(read) == (3 if streaming else 10)  # a stream is read no further than the first batch
    assert [row.values for row in result] == [(str(number), f"row {number}") for number in range(1, 10)]
    wanted = {"repo": "someone/texts", "config": "en", "split": "train", "revision": "1" * 40}
    assert asked == {**wanted, "streaming": streaming, "data_files": None}
