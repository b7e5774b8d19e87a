"""Packages import downwards only, and a stage depends on exactly the packages that its script reaches."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from leap.evidence.evidence_file import MEASURED_BY

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"
# Lowest first: a package imports from those before it only. docs/architecture.md says why.
FLOORS = (
    *("core", "models", "data", "evidence", "extract", "validate", "tracking", "train", "exits", "evaluate"),
    *("latency", "gate", "serve", "registry", "studies", "report", "doctor"),
)
STAGES: dict[str, Any] = YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text())["stages"]


def module_file(name: str) -> Path | None:
    path = SOURCE.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def imported(path: Path) -> Iterator[str]:
    """The modules of leap that a file imports, inside functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
        yield from (name for name in names if name.startswith("leap.") and module_file(name))


def packages_of(script: Path) -> set[str]:
    """The packages that running a script can reach."""
    seen: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [file for name in imported(path) if (file := module_file(name))]
    inside = (path.relative_to(SOURCE / "leap").parts for path in seen if path.is_relative_to(SOURCE))
    return {parts[0] for parts in inside if len(parts) > 1}


@pytest.mark.parametrize("package", FLOORS)
def test_imports_point_downwards(package: str) -> None:
    below = FLOORS[: FLOORS.index(package) + 1]
    upwards = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in sorted((SOURCE / "leap" / package).rglob("*.py"))
        for name in imported(path)
        if name.split(".")[1] not in below
    ]
    assert upwards == []


def test_every_package_has_a_floor() -> None:
    assert {path.parent.name for path in (SOURCE / "leap").glob("*/__init__.py")} == set(FLOORS)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_the_packages_that_it_reaches(name: str) -> None:
    script = f"stages/{name}.py"
    listed = [dep for dep in STAGES[name]["deps"] if dep.startswith(("src/leap/", "stages/"))]
    reached = packages_of(PROJECT / script)
    assert listed == [script, *(f"src/leap/{package}" for package in FLOORS if package in reached)]


@pytest.mark.parametrize("kind", MEASURED_BY)
def test_evidence_names_the_settings_that_its_stage_runs_again_for(kind: str) -> None:
    stage = {"sts": "evaluate_sts", "retrieval": "evaluate_retrieval", "latency": "benchmark_latency"}.get(
        kind, kind
    )
    assert [name for name in STAGES[stage]["params"] if "${" not in name] == list(MEASURED_BY[kind])


def test_a_file_name_occurs_once() -> None:
    """Inside the library; a stage and the module of settings about it may share a name."""
    names = [path.name for path in (SOURCE / "leap").rglob("*.py") if path.name != "__init__.py"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_what_another_package_imports_has_a_docstring() -> None:
    missing = set()
    for path in (SOURCE / "leap").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if (
                not module
                or not module.startswith("leap.")
                or module.split(".")[1] == path.relative_to(SOURCE).parts[1]
            ):
                continue
            file = module_file(module)
            assert file is not None, module
            names = {alias.name for alias in node.names}
            missing |= {
                f"{module}.{each.name}"
                for each in ast.parse(file.read_text()).body
                if isinstance(each, ast.FunctionDef | ast.ClassDef)
                if each.name in names and ast.get_docstring(each) is None
            }
    assert sorted(missing) == []
