import subprocess
import sys
import time
from pathlib import Path

from leap.core import environment as module
from leap.core.environment import commit, cpu_name, environment, package_version


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_versions_are_the_installed_ones_and_no_card_on_the_cpu() -> None:
    import torch

    result = environment("cpu")
    # The metadata of PyPI's own wheels leave out the build, for example +cu130, that the module tells.
    assert result["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert result["python"] == sys.version.split()[0]
    assert result["cores"] >= 1
    assert "card" not in result


def test_a_package_that_is_absent_has_no_version() -> None:
    assert package_version("no-such-package-leap") is None


def test_it_is_fast_and_imports_no_torch() -> None:
    code = "import sys, leap.core.environment as e; e.environment('cpu'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    started = time.perf_counter()
    environment("cpu")
    assert time.perf_counter() - started < 0.5


def test_the_cpu_is_named_by_the_system_or_by_its_architecture(tmp_path: Path, monkeypatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Fine CPU 9000\n")
    monkeypatch.setattr(module, "CPU_INFO", info)
    assert cpu_name() == "Fine CPU 9000"
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "absent")
    assert cpu_name() != ""


def test_the_commit_is_the_full_hash_and_says_whether_files_differ(tmp_path: Path) -> None:
    assert commit(tmp_path) == {"commit": None, "dirty": None}
    git(tmp_path, "init", "-q")
    assert commit(tmp_path) == {"commit": None, "dirty": None}
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "tag", "v1")  # a tag must not take the hash's place
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(tmp_path) == {"commit": head, "dirty": False}
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == {"commit": head, "dirty": True}


def test_the_pipelines_own_lock_and_settings_are_no_change_of_the_code(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name in ("code", "dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "dvc.lock").write_text("two")
    (tmp_path / "params.yaml").write_text("two")
    (tmp_path / "untracked").touch()
    assert commit(tmp_path)["dirty"] is False
    (tmp_path / "code").write_text("two")
    assert commit(tmp_path)["dirty"] is True


def test_the_absence_of_git_is_no_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) == {"commit": None, "dirty": None}
