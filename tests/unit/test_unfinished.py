"""Outputs are whole or absent, whoever is killed when; what was left is cleared, what is at work is not."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import leap
from leap.core.errors import UserError
from leap.core.files import whole_file, whole_folder, write_json
from leap.core.storage import StorageError, storage_message, writing
from leap.core.unfinished import remove_left_parts

# Writes the folder `out` again and again, two files with the same number, one of them slowly.
WRITER = """
import itertools, sys
from pathlib import Path
from leap.core.files import whole_folder
for number in itertools.count():
    with whole_folder(Path(sys.argv[1])) as part:
        (part / "one").write_text(str(number))
        with (part / "many").open("w") as file:
            for _ in range(2000):
                print(number, file=file)
    print(number, flush=True)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leap.__file__).absolute().parents[1])}


def writer(target: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    return process


def test_a_folder_is_whole_or_absent_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for pause in (0.0, 0.011, 0.023, 0.037, 0.041):
        process = writer(target)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".out.")) in (
            ["out"], [],
        )  # fmt: skip
        if target.exists():
            number = (target / "one").read_text()
            assert (target / "many").read_text() == f"{number}\n" * 2000
    with whole_folder(target) as part:
        (part / "last").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in target.iterdir()] == ["last"]


def test_processes_that_write_one_folder_at_once_all_end_well(tmp_path: Path) -> None:
    target = tmp_path / "out"
    limited = WRITER.replace("itertools.count()", "range(200)").replace("range(2000)", "range(2)")
    command = [sys.executable, "-c", limited, str(target)]
    writers = [subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in writers] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "one").read_text() == "199"
    assert (target / "many").read_text() == "199\n" * 2


def test_a_part_half_removed_when_its_process_is_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt), whole_folder(tmp_path / "out") as part:
        (part / "one").touch()
        (part.parent / "more").touch()
        patched.setattr("shutil.rmtree", killed)
    (left,) = tmp_path.glob(".out.*.part")
    assert (left / ".lock").exists()
    assert not (left / "more").exists() or (left / "out").exists()
    assert remove_left_parts(tmp_path) == [left]
    assert not left.exists()


def test_a_part_that_its_writer_removes_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / ".out.abc.part"
    part.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", lambda path: path != part or path.rmdir() is None)
        assert remove_left_parts(tmp_path) == []
    assert not part.exists()


def test_the_part_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    process = writer(tmp_path / "out")
    parts: list[Path] = []
    while not parts:  # stopped while it writes one
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        parts = [part for part in tmp_path.glob(".*.part") if (part / "out").exists()]
    assert remove_left_parts(tmp_path) == []
    assert list(tmp_path.glob(".*.part")) == parts
    process.kill()
    process.wait()
    assert remove_left_parts(tmp_path) == parts
    assert list(tmp_path.glob(".*")) == []


def test_an_error_keeps_what_was_there(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"old": 1})
    with suppress(RuntimeError), whole_file(tmp_path / "file.json") as part:
        part.write_text("half")
        raise RuntimeError
    with whole_folder(tmp_path / "folder") as folder:
        (folder / "old").touch()
    with suppress(RuntimeError), whole_folder(tmp_path / "folder") as folder:
        (folder / "new").touch()
        raise RuntimeError
    assert (tmp_path / "file.json").read_text() == '{\n  "old": 1\n}\n'
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.json", "folder"]


def test_an_output_is_as_readable_as_any_other_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_json(tmp_path / "file.json", 1)
        with whole_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


def test_a_real_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError) as caught,
        writing(tmp_path / "out.json"),
        Path("/dev/full").open("w") as full,
    ):
        full.write("x" * 100_000)
    assert isinstance(caught.value, UserError)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'out.json'} cannot be written: No space left on device (")
    assert message.endswith("; free space, then run the same command again")


def test_what_libraries_make_of_the_disks_answer(tmp_path: Path) -> None:
    rust = SafetensorError("Error while serializing: I/O error: File too large (os error 27)")
    refused = pytest.raises(StorageError, match=r"out cannot be written: File too large; raise .*ulimit -f")
    with refused, writing(tmp_path / "out"):
        raise rust
    damaged = SafetensorError("Error while deserializing header: header too large")
    with pytest.raises(SafetensorError), writing(tmp_path / "out"):
        raise damaged
    assert storage_message(damaged) is None
    assert storage_message(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None
    said = storage_message(OSError(errno.EROFS, "Read-only file system", "models/x"))
    assert said is not None
    assert said.startswith("models/x cannot be read or written: Read-only file system; make it writable")


def test_a_copy_that_does_not_fit_is_one_message(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(bytes(10_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        message = "models/leap-1 cannot be written: File too large; raise the limit"
        with pytest.raises(StorageError, match=message), whole_folder(tmp_path / "models" / "leap-1") as part:
            shutil.copytree(source, part, dirs_exist_ok=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_input_that_may_not_be_read_is_not_called_the_output(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/elsewhere/texts.csv")
    with pytest.raises(PermissionError) as caught, whole_file(tmp_path / "out"):
        raise error
    assert caught.value is error


def test_what_is_written_has_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_folder(tmp_path / "model") as part:
            save_file({"a": torch.zeros(2)}, part / "weights.safetensors")
            (part / "inner").mkdir()
            (part / "inner" / "run.sh").touch(0o700)
        with whole_file(tmp_path / "file") as part:
            os.close(os.open(part, os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert modes == {
        "model": "0o750",
        "inner": "0o750",
        "weights.safetensors": "0o640",
        "run.sh": "0o740",
        "file": "0o640",
    }
