"""Names that would leave a folder or reach a shell are refused by name, wherever they become a path."""

import ast
import copy
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings
from ruamel.yaml import YAML
from tiny_models import write_folder

from leap.core.errors import UserError
from leap.core.settings import parse_settings
from leap.core.settings.profiles import compose
from leap.core.stage import run_program
from leap.evidence.evidence_file import read_evidence
from leap.exits import LeapEncoder
from leap.gate.judgement import judge_checkpoint
from leap.models.find import find_model

PROJECT = Path(__file__).parents[2]
CONTENT = YAML(typ="safe").load((PROJECT / "params.yaml").read_text())
CODE = [path for folder in ("src", "stages", "tools") for path in (PROJECT / folder).rglob("*.py")]

ESCAPES = [
    "../x", "..", ".", "/etc", "a/b", "a\\b", "C:\\x", "a\x00b", "a\nb", "a\n", "~", "~root", "",
    "x; touch y", "$(touch y)", "`touch y`", "a b", "-rf", "\u202ex", "ä", "a" * 65,
]  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize(
    "block",
    [
        "variants",
        "similarity",
        "retrieval",
        "studies",
        "data.sources",
        "gate.checks",
        "studies.beta.variants",
    ],
)
def test_names_of_blocks(block: str, name: str) -> None:
    content = copy.deepcopy(CONTENT)
    blocks = content
    for part in block.split("."):
        blocks = blocks[part]
    blocks[name] = next(iter(blocks.values()))
    with pytest.raises(UserError) as caught:
        parse_settings(content, "params.yaml")
    assert f"  - {block}.{name}" in str(caught.value)
    assert "should match pattern" in str(caught.value)


PATHS = ["../x", "a/../../x", "/etc/passwd", "\\x", "C:\\x", "~/x", "a\x00b", "a\nb", ""]


@pytest.mark.parametrize("path", PATHS)
def test_paths_in_a_folder(path: str) -> None:
    hub = {"kind": "hub", "repo": "a/b", "revision": "0" * 40}
    for block, source, key in (
        ("data.sources", {"kind": "local", "path": path}, "path"),
        ("data.sources", {**hub, "files": [path], "columns": ["a"]}, "files.0"),
        ("similarity", {"kind": "local", "path": path}, "path"),
        ("retrieval", {"kind": "local", "path": path}, "path"),
        ("retrieval", {"kind": "local", "path": "a", "split": path}, "split"),
        ("retrieval", {**hub, "corpus": path, "queries": "q", "qrels": "r"}, "corpus"),
        ("retrieval", {**hub, "corpus": "c", "queries": path, "qrels": "r"}, "queries"),
        ("retrieval", {**hub, "corpus": "c", "queries": "q", "qrels": path}, "qrels"),
    ):
        content = copy.deepcopy(CONTENT)
        blocks = content["data"]["sources"] if block == "data.sources" else content[block]
        blocks["other"] = source
        with pytest.raises(UserError) as caught:
            parse_settings(content, "params.yaml")
        assert f"  - {block}.other.{key}: " in str(caught.value), (block, key)


@pytest.mark.parametrize("path", ["a\x00b", "a\nb", ""])
def test_paths_of_the_users_own_may_be_any_but_no_control_characters(path: str) -> None:
    for key, value in (
        ("data", {**CONTENT["data"], "folder": path}),
        ("teacher", {"kind": "local", "path": path}),
    ):
        with pytest.raises(UserError, match=rf"{key}\.(folder|path): a path must not"):
            parse_settings({**CONTENT, key: value}, "params.yaml")
    assert parse_settings({**CONTENT, "teacher": {"kind": "local", "path": "/models/x"}}, "p").teacher


@pytest.mark.parametrize("repo", ["../x", "a/..", "./a", "a/b/c", "a", "a/b\n", "a/b;c", "C:\\x", "/etc", ".a/b"])
def test_names_of_repositories(repo: str) -> None:
    teacher: dict[str, Any] = {"kind": "hub", "repo": repo, "revision": "0" * 40}
    with pytest.raises(UserError, match=r"teacher\.repo: String should match pattern"):
        parse_settings({**CONTENT, "teacher": teacher}, "params.yaml")


@pytest.mark.parametrize("package", ["../x", "a/b", "a\n", "a b", "-r", "", "a; b", "."])
def test_names_of_packages(package: str) -> None:
    teacher = {"kind": "package", "package": package, "sha256": "0" * 64}
    content = {**CONTENT, "teacher": teacher}
    content["data"] = {**content["data"], "sources": {"d": {"kind": "package", "packages": [package]}}}
    with pytest.raises(UserError) as caught:
        parse_settings(content, "params.yaml")
    assert "teacher.package: String should match pattern" in str(caught.value)
    assert "data.sources.d.packages.0: String should match pattern" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../x", "..", "a/../b", "/no/where", "a/b/c", "C:\\x", "a\x00b", "a\nb", "a/b\n", "~/x", ".x", "x;y"],
)
def test_model_ids(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name that is no folder here becomes a path in the hub's cache: refused before anybody is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked"))
    for find in (find_model, lambda name: LeapEncoder(name, "cpu")):
        with pytest.raises(UserError) as caught:
            find(name)
        # ".." is a folder, only not one of a model.
        assert repr(name) in str(caught.value) or name in str(caught.value)


def test_an_empty_model_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        find_model("")


@pytest.mark.parametrize("name", ["../leap", "leap/../leap", "", "a\x00b", "leap\n", "nobody"])
def test_variants_of_the_command_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`leap promote`, `leap gate` and every stage: the settings know it, or it becomes no path."""
    monkeypatch.chdir(tmp_path)
    settings = made_settings()
    for act in (
        lambda: settings.variant(name),
        lambda: settings.study(name),
        lambda: read_evidence(name, 1, settings),
        lambda: judge_checkpoint(settings, name, 1),
    ):
        with pytest.raises(UserError, match=r"no (variant|study) "):
            act()


@pytest.mark.parametrize("name", ["../embedded", "/etc/passwd", "a\x00b", "", "."])
def test_profiles(name: str) -> None:
    with pytest.raises(UserError, match="expected the name of a file in"):
        compose(name, PROJECT / "profiles")


@pytest.mark.parametrize("seed", ["-1", "1.5", "1;x", "../1", "", "\u0661"])
def test_seeds_of_a_stage(seed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gate.py", "--variant", "leap", f"--seed={seed}"])
    with pytest.raises(SystemExit) as caught:
        run_program(lambda _: pytest.fail("ran"), ("variant", "seed"))
    assert caught.value.code == 2
    assert "is not a whole number of 0 or more" in capsys.readouterr().err


def test_no_name_of_the_settings_reaches_a_shell_unquoted() -> None:
    """`${item}` is quoted by DVC, a single value is not; every other command is fixed."""
    for name, stage in YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text())["stages"].items():
        expected = f"python stages/{name}.py" + (" ${item}" if "matrix" in stage else "")
        assert stage["cmd"] == expected


def test_every_stage_comes_after_the_one_that_validates_the_settings() -> None:
    stages = YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text())["stages"]
    checked = {"data/settings.txt"}
    for name, stage in stages.items():
        if name != "settings":
            deps = [str(dep).partition("${")[0] for dep in stage["deps"]]
            assert any(dep.startswith(done) or done.startswith(f"{dep}/") for dep in deps for done in checked), (
                name
            )
        outputs = [*stage.get("outs", []), *stage.get("metrics", [])]
        checked |= {str(out).partition("${")[0] for out in outputs}


def test_no_archive_is_unpacked_and_no_shell_is_called() -> None:
    """A gzip file is read as a stream of lines; nothing takes a path from inside an archive."""
    modules = {"tarfile", "zipfile", "pickle", "marshal", "shelve", "dill", "joblib"}
    methods = {"unpack_archive", "system", "popen", "getoutput", "getstatusoutput"}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert modules.isdisjoint(alias.name.partition(".")[0] for alias in node.names), path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in modules, path
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec", "__import__"), (path, node.lineno)
                if isinstance(node.func, ast.Attribute):
                    assert node.func.attr not in methods, (path, node.lineno)
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                for option in ("shell", "trust_remote_code"):
                    assert option not in named or getattr(named[option], "value", True) is False, path


def test_a_link_out_of_a_model_folder_is_read_as_what_it_names(tmp_path: Path) -> None:
    """The hub's cache is made of such links, so they are followed; SHA256SUMS compares what they lead to."""
    folder = write_folder(tmp_path / "model")
    weights = tmp_path / "elsewhere.safetensors"
    (folder / "model.safetensors").rename(weights)
    (folder / "model.safetensors").symlink_to(weights)
    assert LeapEncoder(folder, "cpu").depth == 5
