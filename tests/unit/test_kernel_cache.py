"""The cache of compiled kernels: one file for each source, options and compiler, written atomically."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from leap.exits.cuda import compiled
from leap.registry.runtime_code import copy_runtime


class Compiler:
    """Counts what it makes."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> bytes:
        self.made += 1
        return b"binary %d" % self.made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "leap-pipeline" / "kernels"


def test_a_kernel_is_compiled_once(cache: Path) -> None:
    make = Compiler()
    assert compiled.cached_binary(["-DD=384"], "13.0", make) == b"binary 1"
    assert compiled.cached_binary(["-DD=384"], "13.0", make) == b"binary 1"
    assert make.made == 1
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]


def test_other_options_compilers_and_sources_are_other_kernels(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Compiler()
    compiled.cached_binary(["-DD=384"], "13.0", make)
    compiled.cached_binary(["-DD=128"], "13.0", make)
    compiled.cached_binary(["-DD=384"], "13.1", make)
    monkeypatch.setattr(compiled, "source", lambda: "other")
    assert compiled.cached_binary(["-DD=384"], "13.0", make) == b"binary 4"
    assert len(list(cache.iterdir())) == 4


def test_a_kernel_that_the_driver_refuses_is_compiled_again(cache: Path) -> None:
    make = Compiler()
    compiled.cached_binary([], "13.0", make)
    assert compiled.cached_binary([], "13.0", make, again=True) == b"binary 2"
    assert compiled.cached_binary([], "13.0", make) == b"binary 2"


def test_without_a_cache_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = Compiler()
    assert compiled.cached_binary([], "13.0", make) == b"binary 1"
    assert compiled.cached_binary([], "13.0", make) == b"binary 2"


def test_an_interrupted_compilation_leaves_nothing(cache: Path) -> None:
    def broken() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled.cached_binary([], "13.0", broken)
    assert not list(cache.glob("**/*.cubin"))


def test_loading_tries_again_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = SimpleNamespace(nvrtcVersion=lambda: (SimpleNamespace(value=0), 13, 0))
    monkeypatch.setitem(__import__("sys").modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", SimpleNamespace(nvrtc=nvrtc))
    made = Compiler()
    monkeypatch.setattr(compiled, "machine_code", lambda source, options: made())
    seen: list[bytes] = []

    def load(binary: bytes) -> tuple[SimpleNamespace, str | None]:
        seen.append(binary)
        good = binary == b"binary 2"
        return SimpleNamespace(value=not good, name="CUDA_ERROR_INVALID_IMAGE"), "module" if good else None

    driver = SimpleNamespace(cuModuleLoadData=load)
    assert compiled._module(driver, {"D": 384}, "--gpu-architecture=sm_90") == "module"
    assert seen == [b"binary 1", b"binary 2"]
    assert compiled._module(driver, {"D": 384}, "--gpu-architecture=sm_90") == "module"
    assert made.made == 2


def test_the_served_model_carries_the_source(tmp_path: Path) -> None:
    copied = copy_runtime(tmp_path)
    assert (copied / "exits" / "cuda" / "encoder.cu").read_text() == compiled.source()
    for module in ("paths", "cuda/graphs", "cuda/exit_kernels", "cuda/compiled"):
        assert (copied / "exits" / f"{module}.py").is_file()
