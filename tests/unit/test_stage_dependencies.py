"""The pipelines name for every stage the modules and the settings that it uses, no more and no less."""

import ast
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from stage_dependencies import CODE, PIPELINES, imported, modules_of

PROJECT = Path(__file__).parents[2]

STAGES: dict[str, Any] = {
    name: stage
    for pipeline in PIPELINES
    for name, stage in YAML(typ="safe").load((PROJECT / pipeline).read_text())["stages"].items()
}
# No result depends on where MLflow lies; the gate, which registers models, names it all the same.
NOT_INPUTS = {"tracking", "profile"}


@pytest.mark.parametrize("name", STAGES)
def test_modules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    listed = [dep for dep in STAGES[name]["deps"] if dep.startswith(CODE)]
    assert listed == modules_of(Path(f"stages/{name}.py"), Path("src"))


@pytest.mark.parametrize("name", STAGES)
def test_settings(name: str) -> None:
    tree = ast.parse((PROJECT / f"stages/{name}.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "settings"
    }
    if "variant" in used:
        used = used - {"variant"} | {"variants", "student", "loss", "train"}
    if STAGES[name]["params"] == [{"params.yaml": None}]:
        return  # all of them
    listed = {parameter.split(".")[0] for parameter in STAGES[name]["params"]}
    assert used - listed - NOT_INPUTS == set()


def test_imports_inside_functions_count_and_those_for_type_checking_do_not() -> None:
    text = """
from typing import TYPE_CHECKING
import a.b
if TYPE_CHECKING:
    from never import here
def f():
    from c import d, e
"""
    assert set(imported(text)) == {"typing.TYPE_CHECKING", "a.b", "c.d", "c.e"}
