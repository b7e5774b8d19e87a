"""The part of this package that a registered model needs: `leap.exits`, `leap.serve`, and what they import."""

import ast
import shutil
from functools import cache
from pathlib import Path

from leap.core.files import sha256_of, sha256_of_json
from leap.core.source_code import PACKAGE

ENTRIES = ("leap.exits", "leap.serve")
# The CUDA kernel's source, which is compiled where the model is served.
KERNELS = PACKAGE / "exits" / "cuda" / "encoder.cu"
SERVED = Path(__file__).with_name("served_model.py")


def copy_runtime(target: Path) -> Path:
    """Copy the needed modules to `target`/leap and return that folder.

    A tracking server takes files one by one, so the registry gets a dozen and not the whole package.
    """
    for module in runtime_modules():
        source = module_file(module)
        copy = target / "leap" / source.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    shutil.copyfile(KERNELS, target / "leap" / KERNELS.relative_to(PACKAGE))
    return target / "leap"


def runtime_modules() -> set[str]:
    """Return the entries, all that they import from this package anywhere in their code, and their packages."""
    needed: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        waiting += [".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 1)]
        waiting += [module for module in imports(name) if module.partition(".")[0] == "leap"]
    return needed


@cache
def code_hash() -> str:
    """Return the sha256 of the code that a registered model brings along: the other half of what it computes."""
    files = [*(module_file(module) for module in runtime_modules()), KERNELS, SERVED]
    return sha256_of_json({str(file.relative_to(PACKAGE)): sha256_of(file) for file in files})


def imports(module: str) -> set[str]:
    named: set[str] = set()
    for node in ast.walk(ast.parse(module_file(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from leap.exits import rules` may name a module or something in one.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= {node.module, *(name for name in inner if is_module(name))}
    return named


def is_module(name: str) -> bool:
    return name.partition(".")[0] == "leap" and module_file(name).is_file()


def module_file(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
