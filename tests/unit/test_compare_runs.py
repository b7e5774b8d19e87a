import json
from pathlib import Path
from typing import Any

import compare_runs
import pytest
from made_evidence import made_settings, write_evidence

from leap.core.files import write_json

TRAINING = Path("evaluations/leap-1/training/training.json")


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two projects with the same evidence, measured at another speed on another day."""
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_evidence(folder, made_settings(), "leap")
        write_json(folder / TRAINING, {"checkpoint": "a", "seconds": 1.5, "history": "1" * 64})
    changed(tmp_path / "other" / TRAINING, seconds=999.0, history="0" * 64)
    changed(tmp_path / "other/evaluations/leap-1/latency.json", speed_up=0.1)
    changed(
        tmp_path / "other/evaluations/leap-1/diagnose.json", environment={"commit": "other"}, checksum="1" * 64
    )
    return tmp_path / "one", tmp_path / "other"


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_times_do_not_count(projects: tuple[Path, Path]) -> None:
    lines, compared = compare_runs.compare(*projects)
    assert lines == []
    assert compared >= 6


def test_a_summarys_times_do_not_count(tmp_path: Path) -> None:
    way = {"layers": 3, "quality": 0.5}
    timed = [
        {"frontier": [{**way, "ms_p50": time}], "floor": {"ms": time}, "query_speed_up_ci95": [time, time]}
        for time in (1.0, 2.0)
    ]
    for name, summary in zip(("one", "other"), timed, strict=True):
        write_json(tmp_path / f"{name}.json", summary)
    one, other = (compare_runs.content(tmp_path / f"{name}.json") for name in ("one", "other"))
    assert one == other == {"frontier": [way]}


def test_a_last_digit_a_byte_and_a_missing_file_are_named(projects: tuple[Path, Path]) -> None:
    one, other = projects
    path = other / "evaluations/leap-1/diagnose.json"
    content = json.loads(path.read_text())
    content["layers"][2]["nn_at_10"] = 0.8500000001
    path.write_text(json.dumps(content))
    weights = other / "models/leap-1/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    (other / "evaluations/leap-1/retrieval/second.json").unlink()
    missing, diagnosed, model = compare_runs.compare(one, other)[0]
    assert missing == f"evaluations/leap-1/retrieval/second.json: only in {one}"
    assert diagnosed == "evaluations/leap-1/diagnose.json: layers[2].nn_at_10 0.85 and 0.8500000001"
    assert model.startswith("models/leap-1/model.safetensors: content ")


def test_a_check_of_latency_decides_nothing_and_others_do(tmp_path: Path) -> None:
    def verdict(speed: bool, quality: bool) -> dict[str, Any]:
        checks = [{"metric": "latency.speed_up", "passed": speed}, {"metric": "sts.x", "passed": quality}]
        return {"passed": speed and quality, "checks": checks}

    for name, judged in (
        ("a", verdict(True, True)),
        ("b", verdict(False, True)),
        ("c", verdict(True, False)),
    ):
        (tmp_path / name / "verdicts").mkdir(parents=True)
        (tmp_path / name / "verdicts" / "leap-1.json").write_text(json.dumps(judged))
    assert compare_runs.compare(tmp_path / "a", tmp_path / "b")[0] == []
    (line,) = compare_runs.compare(tmp_path / "a", tmp_path / "c")[0]
    assert line == "verdicts/leap-1.json: checks[0].passed true and false"
