"""Compiles and launches the CUDA kernel, through the CUDA bindings that torch for CUDA brings along.

A compiled kernel lies in the user's cache folder under the hash of source, options and compiler, so it is compiled
once a machine. Files there are written atomically; one that the driver refuses is compiled again.
"""

import ctypes
import logging
import os
import struct
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from leap.core.files import sha256_of_json, whole_file
from leap.exits.cuda.tiles import WARPS, TileShape
from leap.models.packed_encoder import EncoderConfig

log = logging.getLogger(__name__)

# The fields of encoder.cu's Arguments: 22 pointers, 7 numbers, epsilon.
ARGUMENTS = struct.Struct("<22Q7if")


class Kernel:
    """encoder.cu, compiled for one shape on one device."""

    def __init__(self, config: EncoderConfig, shape: TileShape, dtype: torch.dtype, device: torch.device) -> None:
        """Compile, which takes seconds; raise RuntimeError where the compiler or the driver refuses."""
        from cuda.bindings import driver  # only CUDA machines have it

        self._prepare(driver, shape.shared_bytes(config))
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # the device's context is there
            self._module = _module(driver, definitions(config, shape, dtype), architecture(device))
            self._function = check_answer(driver.cuModuleGetFunction(self._module, b"encode"))
            dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check_answer(driver.cuFuncSetAttribute(self._function, dynamic, self._shared_bytes))

    def _prepare(self, driver: Any, shared_bytes: int) -> None:
        self._driver = driver
        self._shared_bytes = shared_bytes
        self._buffer = ctypes.create_string_buffer(-(-ARGUMENTS.size // 8) * 8)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._buffer))
        self._lock = Lock()

    def launch(self, blocks: int, stream: int, *arguments: float) -> None:
        """Launch a grid on a stream; `arguments` are the fields of ARGUMENTS.

        Cooperative: all blocks run at once or the launch fails, so their waiting for one another is safe.
        """
        with self._lock:
            ARGUMENTS.pack_into(self._buffer, 0, *arguments)
            launched = self._driver.cuLaunchCooperativeKernel(
                self._function,
                *(blocks, 1, 1),
                *(32 * WARPS, 1, 1),
                self._shared_bytes,
                stream,
                ctypes.addressof(self._pointers),
            )
        check_answer(launched)


def definitions(config: EncoderConfig, shape: TileShape, dtype: torch.dtype) -> dict[str, int]:
    """Return the constants that encoder.cu leaves to the compiler's command line."""
    attend, project, widen, narrow = shape.warps
    return {
        "D": config.width,
        "F": config.intermediate,
        "HEADS": config.heads,
        "MT": shape.rows16,
        "PROJECT": shape.project,
        "WIDEN": shape.widen,
        "NARROW": shape.narrow,
        "ATTEND_NW": attend,
        "PROJECT_NW": project,
        "WIDEN_NW": widen,
        "NARROW_NW": narrow,
        **({"BF16": 1} if dtype == torch.bfloat16 else {}),
    }


def source() -> str:
    return (files("leap") / "exits" / "cuda" / "encoder.cu").read_text()


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "leap-pipeline" / "kernels"


def cached_binary(options: list[str], compiler: str, make: Callable[[], bytes], again: bool = False) -> bytes:
    """Return the compiled kernel from the cache; make it and put it there where it is not.

    A cache that cannot be read or written is done without. `again` compiles even if the cache has one: the
    driver refused it.
    """
    try:
        path = cache_folder() / f"{sha256_of_json([source(), options, compiler])}.cubin"
        if path.is_file() and not again:
            return path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return make()
    binary = make()
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(binary)
    except OSError as error:
        log.info("the compiled kernel is not cached: %s", error)
    return binary


def architecture(device: torch.device) -> str:
    return "--gpu-architecture=sm_{}{}".format(*torch.cuda.get_device_capability(device))


def _module(driver: Any, defined: dict[str, int], architecture: str) -> Any:
    from cuda.bindings import nvrtc

    options = [architecture, "--std=c++17", *(f"-D{name}={value}" for name, value in defined.items())]
    version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    error, module = driver.cuModuleLoadData(
        cached_binary(options, version, lambda: machine_code(source(), options))
    )
    if error.value:
        binary = cached_binary(options, version, lambda: machine_code(source(), options), again=True)
        module = check_answer(driver.cuModuleLoadData(binary))
    return module


def machine_code(source: str, options: list[str]) -> bytes:
    """Compile CUDA C++; raise RuntimeError with the compiler's message where it does not compile."""
    from cuda.bindings import nvrtc

    program = check_answer(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, None, None))
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            text = b" " * check_answer(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, text)
            raise RuntimeError(f"the CUDA kernel does not compile: {text.decode(errors='replace')}")
        binary: bytes = b" " * check_answer(nvrtc.nvrtcGetCUBINSize(program))
        check_answer(nvrtc.nvrtcGetCUBIN(program, binary))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary


def check_answer(answer: tuple[Any, ...]) -> Any:
    """Return a call's result, several as a list; raise RuntimeError where its first part is an error."""
    error, *rest = answer
    if error.value:
        raise RuntimeError(f"CUDA: {error.name}")
    return rest if len(rest) > 1 else rest[0] if rest else None
