"""The quickstart notebook runs from top to bottom and shows what its text says."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"layer {layer}" for layer in range(1, 7)]
    cosines = [float(line.split()[-1]) for line in lines]
    assert cosines[0] < 0.8 < cosines[-1] == pytest.approx(1.0)
