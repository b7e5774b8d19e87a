"""The teacher's cache: right numbers, resumed where it was, refused when it is another's."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_modules
from zoo import write_model

from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.exits import LeapEncoder
from leap.models.folder import hash_weights
from leap.models.locate import Located
from leap.train.teacher import Teacher, build_cache, open_teacher, run_online, write_online
from leap.train.teacher import teacher_cache as cache

MAPPED = Path("/proc/self/maps")


@pytest.fixture
def located(tiny_folder: Path) -> Located:
    return Located(tiny_folder, sha256_of(tiny_folder / "model.safetensors"))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD_ROWS", 16)


def opened_from(folder: Path, located: Located, sentences: list[str]) -> Teacher:
    return open_teacher(folder, sentences, located, torch.device("cpu"), "fp32")


@pytest.mark.usefixtures("small_shards")
def test_rows_are_the_pooled_layers_in_the_sentences_order(
    tmp_path: Path, located: Located, sentences: list[str]
) -> None:
    manifest = build_cache(tmp_path, located, sentences, [0, 2, 5], 32, "cpu")
    assert [shard["rows"] for shard in manifest["shards"]] == [16, 16, 16, 12]
    opened = opened_from(tmp_path, located, sentences)
    wanted = np.array([37, 3, 59, 16])
    result = opened.vectors(opened.inputs(wanted, fixed=False))
    model = LeapEncoder(located.folder, "cpu")
    for place, row in enumerate(wanted):
        ((_, pooled),) = model.pooled_layers([sentences[row]])
        torch.testing.assert_close(result[:, place], pooled[[0, 2, 5], 0], atol=2e-3, rtol=2e-3)


def test_a_shard_is_written_piece_by_piece(
    tmp_path: Path, located: Located, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = []
    pooled = cache._pool_layers
    monkeypatch.setattr(cache, "ROWS_TOGETHER", 25)
    monkeypatch.setattr(
        cache,
        "_pool_layers",
        lambda model, ids, layers: (together.append(len(ids)), pooled(model, ids, layers))[1],
    )
    manifest = build_cache(tmp_path / "pieces", located, sentences, [2, 5], 32, "cpu")
    assert together == [25, 25, 10]
    assert [shard["rows"] for shard in manifest["shards"]] == [60]
    monkeypatch.undo()
    build_cache(tmp_path / "whole", located, sentences, [2, 5], 32, "cpu")
    pieces = opened_from(tmp_path / "pieces", located, sentences)
    whole = opened_from(tmp_path / "whole", located, sentences)
    for wanted in ([24, 25, 59], [0, 26], [59, 1, 24]):
        rows = np.array(wanted)
        one, other = (teacher.vectors(teacher.inputs(rows, fixed=False)) for teacher in (pieces, whole))
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(not MAPPED.is_file(), reason="only Linux says what a process has mapped")
def test_no_shard_is_mapped(tmp_path: Path, located: Located, sentences: list[str]) -> None:
    build_cache(tmp_path / "cache", located, sentences, [5], 32, "cpu")
    opened = opened_from(tmp_path / "cache", located, sentences)
    opened.inputs(np.arange(60))
    assert str(tmp_path) not in MAPPED.read_text()


def test_a_shard_that_is_cut_in_use_is_refused(tmp_path: Path, located: Located, sentences: list[str]) -> None:
    build_cache(tmp_path / "cache", located, sentences, [5], 32, "cpu")
    opened = opened_from(tmp_path / "cache", located, sentences)
    (shard,) = (tmp_path / "cache").glob("shard-*.bin")
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(UserError, match=r"shard-00000\.bin was cut while it was in use"):
        opened.inputs(np.arange(60))


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_cache_goes_on_at_the_first_missing_shard(
    tmp_path: Path, located: Located, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build_cache(tmp_path / "whole", located, sentences, [5], 32, "cpu")
    written = []
    write = cache._write_shard

    def write_two(path: Path, *rest: object) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "_write_shard", write_two)
    with pytest.raises(KeyboardInterrupt):
        build_cache(tmp_path / "cut", located, sentences, [5], 32, "cpu")
    assert not (tmp_path / "cut" / "manifest.json").exists()
    (tmp_path / "cut" / "shard-00001.bin").write_bytes(b"half")  # as if the disk lost its end
    again = []
    monkeypatch.setattr(cache, "_write_shard", lambda path, *rest: (again.append(path.name), write(path, *rest)))
    assert build_cache(tmp_path / "cut", located, sentences, [5], 32, "cpu") == whole
    assert again == ["shard-00001.bin", "shard-00002.bin", "shard-00003.bin"]


def test_a_whole_cache_is_not_computed_again(tmp_path: Path, located: Located, sentences: list[str]) -> None:
    first = build_cache(tmp_path, located, sentences, [5], 32, "cpu")
    before = (tmp_path / "shard-00000.bin").stat().st_mtime_ns
    assert build_cache(tmp_path, located, sentences, [5], 32, "cpu") == first
    assert (tmp_path / "shard-00000.bin").stat().st_mtime_ns == before
    other = build_cache(tmp_path, located, sentences, [4, 5], 32, "cpu")
    assert other["layers"] == [4, 5]


def test_a_kill_after_the_manifest_leaves_nothing_of_the_work(
    tmp_path: Path, located: Located, sentences: list[str]
) -> None:
    whole = build_cache(tmp_path, located, sentences, [5], 32, "cpu")
    before = sorted(tmp_path.iterdir())
    (tmp_path / "building.json").write_text("{}")
    (tmp_path / "shard-00000.json").write_text("{}")
    assert build_cache(tmp_path, located, sentences, [5], 32, "cpu") == whole
    assert sorted(tmp_path.iterdir()) == before


def test_another_teacher_other_text_and_flipped_bytes_are_refused_by_name(
    tmp_path: Path, located: Located, sentences: list[str]
) -> None:
    build_cache(tmp_path, located, sentences, [5], 32, "cpu")
    with pytest.raises(UserError, match="teacher is"):
        opened_from(tmp_path, Located(located.folder, "0" * 64), sentences)
    with pytest.raises(UserError, match="sentences is"):
        opened_from(tmp_path, located, sentences[::-1])
    shard = tmp_path / "shard-00000.bin"
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"shard-00000\.bin"):
        opened_from(tmp_path, located, sentences)


def test_any_sentence_encoder_is_a_teacher(tmp_path: Path, sentences: list[str]) -> None:
    """A decoder that pools its last token, cached and online: the layers that LeapEncoder gives."""
    folder = write_modules(write_model(tmp_path / "m", "qwen3", side="left"), "lasttoken")
    located = Located(folder, hash_weights(folder))
    manifest = build_cache(tmp_path / "cached", located, sentences, [0, 2, 4], 32, "cpu")
    assert (manifest["pooling"], manifest["width"]) == ("lasttoken", 16)
    write_online(tmp_path / "online", located, sentences, [0, 2, 4], 32)
    rows = np.array([37, 3, 59, 16])
    wanted = torch.empty(3, 4, 16)
    for places, pooled in LeapEncoder(folder, "cpu").pooled_layers([sentences[row] for row in rows]):
        wanted[:, places] = pooled[[0, 2, 4]]
    for name in ("cached", "online"):
        teacher = opened_from(tmp_path / name, located, sentences)
        result = teacher.vectors(teacher.inputs(rows, fixed=False))
        torch.testing.assert_close(result, wanted, atol=2e-3, rtol=2e-3)


def test_an_online_teacher_gives_the_cached_vectors(
    tmp_path: Path, located: Located, sentences: list[str]
) -> None:
    build_cache(tmp_path / "cached", located, sentences, [0, 2, 5], 32, "cpu")
    manifest = write_online(tmp_path / "online", located, sentences, [0, 2, 5], 32)
    assert (manifest["shards"], manifest["online"]) == ([], True)
    rows = np.array([37, 3, 59, 16])  # in no order of length
    results = [opened_from(tmp_path / name, located, sentences) for name in ("cached", "online")]
    cached, online = (teacher.vectors(teacher.inputs(rows, fixed=False)) for teacher in results)
    assert online.shape == (3, 4, 16)
    torch.testing.assert_close(online, cached, atol=2e-3, rtol=2e-3)  # the cache is half precision


def test_auto_caches_up_to_twenty_gigabytes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert not run_online("auto", rows=1_500_000, layers=7, width=384)
    assert run_online("auto", rows=1_500_000, layers=12, width=1024)  # bert-large in the paper
    assert "36.86 GB" in caplog.text
    assert run_online("online", rows=10, layers=1, width=8)
    assert not run_online("cached", rows=1_500_000, layers=12, width=1024)
