"""Keeps the pipelines' lists of modules true: every stage depends on exactly the modules that it imports.

python scripts/stage_dependencies.py            # rewrites dvc.yaml and studies/dvc.yaml
python scripts/stage_dependencies.py --check    # only compares, exits with 1 on a difference
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

CODE = ("src/", "stages/")
PIPELINES = (Path("dvc.yaml"), Path("studies/dvc.yaml"))


def modules_of(stage: Path, source: Path) -> list[str]:
    """The stage's script and all modules under `source` that it imports, directly or through others.

    What a module names by its path counts too: a file beside it, a dotted name, a folder of resources.
    """
    found: dict[Path, None] = {}
    waiting = [stage]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        text = path.read_text(encoding="utf-8")
        named = set(strings(text))
        names = {*imported(text), *(name for name in named if re.fullmatch(r"leap(\.\w+)+", name))}
        waiting += [file for name in sorted(names) for file in files_of(name, source)]
        beside = [path.with_name(name) for name in sorted(named) if re.fullmatch(r"\w+\.py", name)]
        waiting += [file for file in beside if file.exists()]
        for name in re.findall(r'"resources" / "(\w+)"', text):
            found |= dict.fromkeys(sorted((source / "leap" / "resources" / name).rglob("*.*")))
    return sorted(path.as_posix() for path in found)


def imported(text: str) -> Iterator[str]:
    """The dotted names of everything imported, inside functions too, but not for type checking only."""
    tree = ast.parse(text)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def strings(text: str) -> Iterator[str]:
    """All string literals."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def files_of(name: str, source: Path) -> Iterator[Path]:
    """The files that importing a dotted name runs: its packages' __init__ and the module."""
    path = source
    for part in name.split("."):
        path = path / part
        if (path / "__init__.py").exists():
            yield path / "__init__.py"
        elif path.with_suffix(".py").exists():
            yield path.with_suffix(".py")


def main() -> None:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for pipeline in PIPELINES:
        wrong = _mended(pipeline, check)
        if check and wrong:
            sys.exit(f"{pipeline}: run `make fix`, the modules of these stages changed: {', '.join(wrong)}")


def _mended(pipeline: Path, check: bool) -> list[str]:
    """The stages whose lists are wrong; writes the right ones unless only checking."""
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 110, True
    content = yaml.load(pipeline)
    wrong = []
    for name, stage in content["stages"].items():
        data = [dep for dep in stage["deps"] if not str(dep).startswith(CODE)]
        code = modules_of(Path(f"stages/{name}.py"), Path("src"))
        if [*data, *code] != list(stage["deps"]):
            wrong.append(name)
            stage["deps"][:] = [*data, *code]
    if wrong and not check:
        yaml.dump(content, pipeline)
    return wrong


if __name__ == "__main__":
    main()
