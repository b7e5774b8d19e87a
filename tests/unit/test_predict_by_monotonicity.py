import json
from pathlib import Path

import pytest
from predict_by_monotonicity import models, table

SUCCESS, FAR, NEVER = "exits and is near", "exits and is far", "never exits"


def seed(checkpoint: str, curve: list[float], rate: float, similarity: float) -> dict[str, object]:
    layers = [{"layer": layer, "similarity_to_final": value} for layer, value in enumerate(curve, start=1)]
    return {"checkpoint": checkpoint, "layers": layers, "exit": {"rate": rate, "similarity": similarity}}


@pytest.fixture
def summaries(tmp_path: Path) -> list[Path]:
    up, down = [0.5, 0.8, 1.0], [0.5, 0.4, 1.0]
    one = {
        "leap": {"seeds": {"1": seed("a", up, 1.0, 0.98), "2": seed("b", down, 1.0, 0.98)}},
        "baseline": {
            "seeds": {"1": seed("c", up, 0.9, 0.5), "2": {"checkpoint": None, "layers": None, "exit": None}}
        },
    }
    again = {
        "leap": {"seeds": {"1": seed("a", up, 1.0, 0.98)}},
        "fixed": {"seeds": {"1": seed("d", up, 0.0, 1.0)}},
    }
    paths = [tmp_path / name for name in ("one.json", "two.json", "other.json")]
    for path, content in zip(paths, ({"variants": one}, {"variants": again}, [1, 2]), strict=True):
        path.write_text(json.dumps(content))
    return paths


def test_every_checkpoint_counts_once_by_shape_and_outcome(summaries: list[Path]) -> None:
    result = models(summaries)
    assert [(model.monotonic, model.outcome) for model in result] == [
        (True, SUCCESS), (False, SUCCESS), (True, FAR), (True, NEVER),
    ]  # fmt: skip
    assert table(result) == {
        "monotonic": {SUCCESS: 1, FAR: 1, NEVER: 1},
        "not monotonic": {SUCCESS: 1, FAR: 0, NEVER: 0},
    }


def test_idle_layers_are_no_step_away(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    idle = seed("a", [0.9, 1.0, 1.0 - 1e-7, 1.0], 1.0, 0.99)
    path.write_text(json.dumps({"variants": {"leap": {"seeds": {"1": idle}}}}))
    assert models([path])[0].monotonic
