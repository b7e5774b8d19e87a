"""Mistakes of the settings and of the command line: all in one message, before anything is done."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tiny_models import MakeFolder
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.core.stage import run_program
from leap.exits import LeapEncoder
from leap.exits.calibrate.risk import Demand

PROJECT = Path(__file__).parents[2]
STAGES = sorted((PROJECT / "stages").glob("*.py"))
WRONG = ("train.batch_size: ", "exit: min_layer 99 is above", "surprising: unknown key")


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds nothing but settings with three mistakes of three kinds."""
    content = YAML(typ="safe").load((PROJECT / "params.yaml").read_text())
    content["train"]["batch_size"] = 0
    content["exit"]["min_layer"] = 99
    content["surprising"] = 1
    monkeypatch.chdir(tmp_path)
    with Path("params.yaml").open("w") as file:
        YAML(typ="safe").dump(content, file)
    return tmp_path


def check_message(message: str) -> None:
    for mistake in WRONG:
        assert f"  - {mistake}" in message


def test_a_stage_reads_the_settings_before_its_body(
    wrong: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["stage.py"])
    with pytest.raises(SystemExit) as caught:
        run_program(lambda _: pytest.fail("the body ran"), ())
    assert caught.value.code == 1
    check_message(capsys.readouterr().err)
    assert [path.name for path in wrong.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda path: path.stem)
def test_every_stage_begins_so(stage: Path) -> None:
    """Its module only defines; its one function is the stage's, and runs when the file is run as a program."""
    tree = ast.parse(stage.read_text()).body
    assert all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Assign | ast.Expr) for node in tree
    )
    bodies = [node for node in tree if isinstance(node, ast.FunctionDef) and node.decorator_list]
    assert [node.name for node in bodies] == [stage.stem]
    assert ast.unparse(bodies[0].decorator_list[0]).startswith("stage(")


COMMANDS = [
    ["check"],
    ["track"],
    ["gate", "evaluations"],
    ["promote", "leap"],
    ["rollback"],
    ["history"],
    ["export", "models:/leap-docstrings@champion", "out", "--to", "sentence-transformers"],
    ["monitor", "--reference", "a", "--current", "b"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_that_reads_settings(wrong: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, UserError), done.exception
    check_message(str(done.exception))
    assert [path.name for path in wrong.iterdir()] == ["params.yaml"]


RULE = ["--threshold", "1.5", "--min-layer", "99"]
RULE_TOLD = ("threshold 1.5 is not a cosine", "min_layer 99 is not a layer of this model: 1 to 5")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["doctor", "MODEL", *RULE, "--patience", "7"], (*RULE_TOLD, "patience 7 must be")),
        (["doctor", "MODEL", "--threshold", "nan"], ("threshold nan is not a cosine",)),
        (["doctor", "MODEL", "--device", "tpu"], ("device 'tpu' is none of auto, cpu, cuda and cuda:N",)),
        (["doctor", "MODEL", "--page", "."], (". exists, a folder that stays as it is",)),
        (["latency", "MODEL", *RULE], RULE_TOLD),
        (
            [
                "latency",
                "MODEL",
                "--batch-size",
                "0",
                "--iterations",
                "1",
                "--warmup",
                "-1",
                "--device",
                "tpu",
            ],
            ("batch_sizes.0: ", "iterations: ", "warmup: ", "device: "),
        ),
        (["latency", "MODEL", "--length", "7", "--precision", "fp8"], ("lengths.0", "precision: ")),
        (["latency", "MODEL", "--quantize", "int4"], ("quantize 'int4' is not supported",)),
        (
            [
                "calibrate",
                "MODEL",
                "--sentences",
                "s.txt",
                "--floor",
                "-2",
                "--risk",
                "0",
                "--confidence",
                "1",
            ],
            ("floor -2.0 is not a cosine", "risk 0.0 must lie", "confidence 1.0 must lie"),
        ),
        (
            ["calibrate", "MODEL", "--sentences", "s.txt", "--device", "cuda:x"],
            ("device 'cuda:x' is none of",),
        ),
    ],
)
def test_values_of_the_command_line(
    make_folder: MakeFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    expected: tuple[str, ...],
) -> None:
    """All of a kind at once; nothing is encoded before and nothing is written."""
    folder = make_folder()
    monkeypatch.chdir(tmp_path)
    Path("s.txt").write_text("bi bo\n" * 3)
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(LeapEncoder, "encode", lambda *_, **__: pytest.fail("encoded"))
    monkeypatch.setattr(LeapEncoder, "pooled_layers", lambda *_, **__: pytest.fail("encoded"))
    done = CliRunner().invoke(app, [str(folder) if part == "MODEL" else part for part in command])
    assert isinstance(done.exception, UserError), done.exception
    for part in expected:
        assert part in str(done.exception)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "m", "--sentences", "s", "--batch-size", "0"],
        ["calibrate", "m", "--sentences", "s", "--batch-size", "many"],
        ["latency", "m", "--threads", "0"],
        ["doctor", "m", "--min-layer", "2.5"],
        ["cost", "--daily", "0"],
    ],
)
def test_what_the_command_line_itself_refuses(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert command[-2] in done.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size 0 must be"),
        ({"batch_size": 2.0}, "batch_size 2.0 must be a whole number"),
        ({"batch_size": True}, "batch_size True must be a whole number"),
        ({"truncate_dim": 0}, "truncate_dim 0 must be"),
        ({"truncate_dim": "8"}, "truncate_dim '8' must be a whole number"),
        ({"threshold": "high"}, "threshold 'high' is not a number"),
        ({"threshold": float("nan")}, "threshold nan is not a cosine"),
        ({"min_layer": 2.5}, "min_layer 2.5 is not a whole number"),
        ({"patience": "1"}, "patience '1' is not a whole number"),
        ({"threshold": 2, "min_layer": 0, "patience": 9}, "threshold 2.*min_layer 0.*patience 9"),
        ({"strategy": "patience", "pabee_patience": 5}, "pabee_patience 5 must be"),
        ({"strategy": "guess"}, "strategy 'guess' is none of"),
        ({"precision": "float8"}, "precision 'float8' is none of"),
    ],
)
def test_arguments_of_encode(tiny_model: LeapEncoder, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny_model.encode(["bi"], **options)


def test_all_that_cannot_be_demanded_of_a_calibration() -> None:
    with pytest.raises(ValueError, match=r"floor 2 .*; risk 0 .*; confidence 3 "):
        Demand(2, 0, 3).check()


def test_a_rule_in_leap_json_with_mistakes(make_folder: MakeFolder) -> None:
    folder = make_folder()
    rule = {"threshold": 2, "min_layer": 9, "patience": 0.5}
    (folder / "leap.json").write_text(json.dumps({"exit": rule}))
    with pytest.raises(UserError, match=r"leap\.json .*threshold 2 .*; min_layer 9 .*; patience 0\.5 "):
        LeapEncoder(folder, "cpu")
