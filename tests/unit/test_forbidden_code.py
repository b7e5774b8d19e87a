"""No pickle, no eval, no code of a model or a data set, no shell: over the whole tree, by its syntax.

The linters see a part of it (ruff's S rules, bandit); this sees what they leave to a configuration.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("src", "stages", "tools") for path in (PROJECT / folder).rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
    "yaml",
}
# yaml is PyYAML, which reads YAML 1.1 and has a loader that runs code; ruamel.yaml is read instead.
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load", "torch.save", "torch.hub.load", "np.load", "numpy.load", "np.save", "pd.read_pickle",
    "pandas.read_pickle", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "importlib.import_module", "tarfile.open",
    "shutil.unpack_archive", "zipfile.ZipFile",
}  # fmt: skip
# Keywords that open what is closed by default, with the only values that they may have.
KEYWORDS = {
    "trust_remote_code": (False,), "allow_pickle": (False,), "weights_only": (True,), "shell": (False,),
    "allow_code_execution": (False,), "use_safetensors": (True,),
}  # fmt: skip


def forbidden(text: str) -> Iterator[str]:
    """Find the forbidden parts of a module's code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]
            yield from (f"import {name}" for name in names if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Attribute | ast.Name) and dotted(node) in CALLS:
            yield dotted(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                yield node.func.id
            if dotted(node.func).endswith("YAML"):
                kinds = [value.value for value in node.args[:1] if isinstance(value, ast.Constant)]
                kinds += [
                    k.value.value for k in node.keywords if k.arg == "typ" and isinstance(k.value, ast.Constant)
                ]
                yield from (f"YAML {kind}" for kind in kinds if kind not in ("safe", "rt"))
            for keyword in node.keywords:
                allowed = KEYWORDS.get(keyword.arg or "")
                if allowed and not (isinstance(keyword.value, ast.Constant) and keyword.value.value in allowed):
                    yield f"{keyword.arg}={ast.unparse(keyword.value)}"
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("trust_remote_code", "allow_pickle"):
                    yield f"{key.value}: {ast.unparse(value)}"


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an expression that is nothing but names, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_no_module_does_what_could_run_foreign_code(path: Path) -> None:
    assert list(forbidden(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", "import pickle"),
        ("from joblib import load", "import joblib"),
        ("x = torch.load('f')", "torch.load"),
        ("read = np.load\nread('f', allow_pickle=True)", "np.load"),
        ("eval(text)", "eval"),
        ("subprocess.run(command, shell=True)", "shell=True"),
        ("subprocess.run(command, shell=chosen)", "shell=chosen"),
        (
            "AutoModel.from_pretrained(x, trust_remote_code=settings.trust)",
            "trust_remote_code=settings.trust",
        ),
        ("options = {'trust_remote_code': True}", "trust_remote_code: True"),
        ("YAML(typ='unsafe')", "YAML unsafe"),
        ("import yaml", "import yaml"),
        ("os.system(name)", "os.system"),
    ],
)
def test_it_sees_each_of_them(text: str, found: str) -> None:
    assert found in list(forbidden(text))


def test_it_lets_the_safe_forms_be() -> None:
    assert (
        list(forbidden("YAML(typ='safe')\nmodel.eval()\nsubprocess.run([a], shell=False)\ncompile_layers(x)"))
        == []
    )


def sources(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every block of a profile that says where a model or data come from."""
    if isinstance(value, dict):
        if value.get("kind") in ("hub", "package"):
            yield place, value
        for key, item in value.items():
            yield from sources(item, f"{place}.{key}")


@pytest.mark.parametrize("profile", sorted((PROJECT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_hub_id_has_a_commit_and_every_packaged_model_a_hash(profile: Path) -> None:
    content = YAML(typ="safe").load(profile.read_text())
    for place, source in sources(content, profile.stem):
        if source["kind"] == "hub":
            assert len(source["revision"]) == 40, place
            assert set(source["revision"]) <= set("0123456789abcdef"), place
        elif "package" in source:
            assert len(source["sha256"]) == 64, place
