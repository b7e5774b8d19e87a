"""The checksum of a JSON file shows every later change, wherever it lies."""

import json
from pathlib import Path

import pytest

from leap.core.errors import UserError
from leap.core.files import read_json, write_with_checksum

CONTENT = {"checkpoint": "a" * 64, "figures": [1.5, None], "name": "leap"}


def test_a_file_with_a_checksum_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_with_checksum(tmp_path / "a.json", CONTENT)
    content = read_json(tmp_path / "a.json", "dvc repro")
    assert {key: value for key, value in content.items() if key != "checksum"} == CONTENT


@pytest.mark.parametrize(
    ("old", "new"),
    [("1.5", "1.6"), ("leap", "lean"), ("checksum", "checksam"), ("figures", "figurer"), ("null", "0")],
)
def test_a_change_is_refused_also_in_the_name_of_the_checksum(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "a.json"
    write_with_checksum(path, CONTENT)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"a\.json was edited after it was written"):
        read_json(path, "dvc repro")


def test_a_file_without_a_checksum_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(CONTENT))
    assert read_json(tmp_path / "a.json", "dvc repro") == CONTENT
