"""Docstrings of installed packages: read, never imported, always in the same order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from leap.core.errors import UserError
from leap.extract import docstrings
from leap.extract.docstrings import read_docstrings

FILES = {
    "toy/__init__.py": '"""Tools for a toy that is small."""\nraise RuntimeError("imported")\n',
    "toy/b.py": (
        'class Box:\n    """A box that holds the toys."""\n\n'
        '    def open(self):\n        """Open the lid of the box.\n\n'
        '        The lid stays open until it is closed. The toys do not fall out of it.\n        """\n\n'
        '    def _lock(self):\n        """Lock the lid of the box."""\n'
    ),
    "toy/a.py": (
        'try:\n    pass\nexcept ImportError:\n    def late():\n        """Say that it is too late for this."""\n'
    ),
    "toy/broken.py": '"""This file is not in the Python language."""\ndef (:\n',
    "toy/tests/test_a.py": '"""This is a test of the first module."""\n',
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    docstrings._read_package.cache_clear()
    yield
    docstrings._read_package.cache_clear()


def install(folder: Path, files: dict[str, str], record: list[str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    info = folder / "toy_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-dist\nVersion: 1.0\n", encoding="utf-8")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in record), encoding="utf-8")


def test_names_summaries_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, FILES, list(FILES))
    monkeypatch.syspath_prepend(tmp_path)
    result = read_docstrings(["toy-dist"])
    assert [(item.name, item.summary) for item in result] == [
        ("toy", "Tools for a toy that is small."),
        ("toy.a.late", "Say that it is too late for this."),
        ("toy.b.Box", "A box that holds the toys."),
        ("toy.b.Box.open", "Open the lid of the box."),
    ]
    assert result[-1].sentences == (
        "Open the lid of the box.",
        "The lid stays open until it is closed.",
        "The toys do not fall out of it.",
    )


def test_the_order_of_the_record_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for number, record in enumerate((list(FILES), list(reversed(FILES)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        install(folder, FILES, record)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            orders.append(read_docstrings(["toy-dist"]))
        docstrings._read_package.cache_clear()
    assert orders[0] == orders[1]


def test_a_summary_without_a_full_stop_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"toy.py": '"""Return the number of the toys"""\n'}
    install(tmp_path, files, list(files))
    monkeypatch.syspath_prepend(tmp_path)
    assert read_docstrings(["toy-dist"])[0].summary == "Return the number of the toys."


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(UserError, match=r"'no-such-thing' is not installed.*pip install no-such-thing"):
        read_docstrings(["no-such-thing"])


def test_a_package_without_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, {}, [])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="no Python files"):
        read_docstrings(["toy-dist"])
