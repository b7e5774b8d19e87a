"""Copies in the hub's cache: whole ones are used unasked, parts and damaged files are not."""

import hashlib
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from leap.core.errors import UserError
from leap.core.hub import fetch

COMMIT = "0" * 40


class Hub:
    """A made-up hub behind huggingface_hub's two calls, and its cache in the library's own form."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, bytes] = {}
        self.snapshot_folder = root / "snapshots" / COMMIT
        self.blobs = root / "blobs"
        self.reachable = True
        self.asked = 0
        self.listed = False  # the cache has the list of the repository's files

    def cache(self, name: str) -> None:
        """Puts a file into the cache: a link to a blob that is named by its hash."""
        content = self.files[name]
        large = len(content) > 20
        digest = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
        self.blobs.mkdir(exist_ok=True, parents=True)
        blob = self.blobs / digest.hexdigest()
        blob.write_bytes(content)
        link = self.snapshot_folder / name
        link.parent.mkdir(exist_ok=True, parents=True)
        link.symlink_to(blob)

    def download(self, repo: str, **options: Any) -> str:
        from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

        wanted = [name for name in self.files if any(fnmatch(name, each) for each in options["allow_patterns"])]
        lacking = [name for name in wanted if not (self.snapshot_folder / name).exists()]
        if options["local_files_only"]:
            if not self.snapshot_folder.is_dir():
                raise LocalEntryNotFoundError("not cached")
            if self.listed and lacking:
                raise IncompleteSnapshotError("not all of it", snapshot_path=str(self.snapshot_folder))
        else:
            self.listed = True
            for name in lacking:
                self.cache(name)
        return str(self.snapshot_folder)

    def tree(self, *_: Any, **__: Any) -> None:
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        if not self.listed:
            raise CachedRepoTreeNotFoundError("not downloaded by this library")

    def info(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        if not self.reachable:
            raise ConnectionError("no network")

    def fetch(self, *patterns: str, kind: Any = "dataset") -> list[str]:
        folder = fetch("a/b", COMMIT, patterns, kind, required=patterns[:1])
        links = (file for file in folder.rglob("*") if file.is_symlink())
        return sorted(file.relative_to(folder).as_posix() for file in links)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", made.download)
    monkeypatch.setattr("huggingface_hub.get_cached_repo_tree", made.tree)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", made.info)
    made.files = {f"data/t-0000{i}-of-00002.txt": f"part {i} of a large file".encode() for i in range(2)}
    made.files["data/notes.txt"] = b"short"
    return made


def test_a_download_that_was_killed_is_completed(hub: Hub) -> None:
    hub.cache("data/t-00000-of-00002.txt")
    assert hub.fetch("data/t-*.txt") == ["data/t-00000-of-00002.txt", "data/t-00001-of-00002.txt"]
    assert hub.asked == 1
    hub.reachable = False
    assert len(hub.fetch("data/t-*.txt")) == 2  # known to be whole now, so nobody is asked
    assert hub.asked == 1
    with pytest.raises(UserError, match="hub cannot be reached"):
        hub.fetch("data/*.txt")  # known to lack notes.txt
    hub.reachable = True
    assert hub.fetch("data/*.txt") == sorted(hub.files)


def test_a_part_is_refused_by_name_where_the_hub_cannot_be_reached(hub: Hub) -> None:
    for name in hub.files:
        hub.cache(name)
    hub.reachable = False
    with pytest.raises(UserError, match=r"a/b .* in part only: .*name each file without a wildcard"):
        hub.fetch("data/t-*.txt")
    assert len(hub.fetch("data/notes.txt")) == 3


def test_a_model_that_another_program_fetched_in_part_is_completed(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers alone fetches no modules.json: without it pooling and normalisation would be guessed."""
    hub.files = {"config.json": b"{}", "modules.json": b"[]"}
    hub.cache("config.json")
    hub.reachable = False
    assert hub.fetch("config.json", "*.json", kind="model") == ["config.json"]
    assert "cannot be asked whether the copy" in caplog.text
    hub.reachable = True
    assert hub.fetch("config.json", "*.json", kind="model") == ["config.json", "modules.json"]


@pytest.mark.parametrize("name", ["data/t-00000-of-00002.txt", "data/notes.txt"])
def test_a_flipped_byte_in_the_cache_is_refused_by_name(hub: Hub, name: str) -> None:
    hub.fetch("data/*.txt")
    blob = (hub.snapshot_folder / name).resolve()
    content = bytearray(blob.read_bytes())
    content[2] ^= 1
    blob.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{blob} is damaged")):
        hub.fetch("data/*.txt")
