from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leap.core.errors import UserError
from leap.core.files import sha256_of_sentences
from leap.data.sentence_file import SentenceFile, read_sentences

TEXTS = [f"sentence {number}" for number in range(23)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Row groups of 5, 5, 5, 5 and 3."""
    pq.write_table(pa.table({"sentence": TEXTS, "source": ["web"] * 23}), tmp_path / "s.parquet", 5)
    return tmp_path / "s.parquet"


def test_a_sentence_file_is_the_list_that_it_holds(path: Path) -> None:
    result = SentenceFile(path)
    assert list(result) == read_sentences(path) == TEXTS
    assert len(result) == 23
    assert [result[row] for row in (0, 4, 5, 22, -1, -23)] == [TEXTS[row] for row in (0, 4, 5, 22, -1, -23)]
    for part in (slice(3, 12), slice(20, 99), slice(None, None, 7), slice(5, 5), slice(-2, None)):
        assert result[part] == TEXTS[part]
    with pytest.raises(IndexError):
        result[23]
    assert sha256_of_sentences(result) == sha256_of_sentences(TEXTS)


def test_only_one_row_group_is_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = SentenceFile(path)
    read: list[int | None] = []
    original = result._file.read
    monkeypatch.setattr(result._file, "read", lambda group: (read.append(group), original(group))[1])
    assert result[3:12] == TEXTS[3:12]
    assert read == [0, 1, 2]
    assert len(result._group[1]) == 5


def test_another_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence": [1, 2]}), tmp_path / "numbers.parquet")
    with pytest.raises(UserError, match=r"numbers.parquet has the columns \{'sentence': 'int64'\}, expected"):
        SentenceFile(tmp_path / "numbers.parquet")
    with pytest.raises(UserError, match="is missing: `dvc repro extract` writes it"):
        SentenceFile(tmp_path / "none.parquet")
