"""The monitor against its reference implementation: the same numbers from all layers of all sentences."""

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from tiny_models import MakeFolder
from torch.nn import functional as F

import leap
from leap.core.errors import UserError
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import at_layers, consecutive_similarity, converged
from leap.serve import Monitor, window_writer
from leap.serve.window import read_windows

# Rows of the tiny model leave at layers 3, 4 and 5.
MIXED = {"threshold": 0.885, "min_layer": 2, "patience": 2}


@pytest.fixture
def model(make_folder: MakeFolder) -> LeapEncoder:
    return LeapEncoder(make_folder(), "cpu")


@pytest.fixture
def windows(tmp_path: Path) -> Path:
    return tmp_path / "windows"


def pooled_of(model: LeapEncoder, texts: list[str]) -> torch.Tensor:
    pooled = torch.empty(model.depth + 1, len(texts), model.encoder.config.width)
    for rows, vectors in model.pooled_layers(texts):
        pooled[:, rows] = vectors
    return pooled


def test_counts_and_similarities_are_those_of_all_layers(
    model: LeapEncoder, sentences: list[str], windows: Path
) -> None:
    model.monitor = Monitor(model, windows, shadow_rate=1.0, expected_layers=4.0)
    _, layers = model.encode(sentences, batch_size=7, return_exit_layers=True, **MIXED)
    window = model.monitor.window()
    pooled = pooled_of(model, sentences)
    exits = converged(pooled, ExitRule(**MIXED))
    assert exits.tolist() == layers.tolist()
    assert window.exits == tuple(torch.bincount(exits, minlength=6)[1:].tolist())
    assert window.mean_layer == pytest.approx(exits.double().mean().item())
    assert window.exit_rate == pytest.approx((exits < 5).double().mean().item())
    assert window.layer_reduction == pytest.approx(5 / exits.double().mean().item())
    assert window.predicted_layer_reduction == 1.25

    scores = consecutive_similarity(pooled, 2)
    for layer in (3, 4):
        there = scores[layer - 1, exits >= layer]
        assert window.similarity[layer - 1].n == len(there)
        assert window.similarity[layer - 1].mean == pytest.approx(there.mean().item(), abs=1e-5)
    # Layer 5 is the last: nothing is decided there, so nothing is computed.
    assert [each.n for each in window.similarity[:2]] == [0, 0]
    assert window.similarity[4].n == 0

    final = F.cosine_similarity(pooled[1:], pooled[-1:], dim=-1).mean(1)
    assert [each.mean for each in window.to_final] == pytest.approx(final.tolist(), abs=1e-5)
    exited = F.cosine_similarity(at_layers(pooled, exits), pooled[-1], dim=-1)
    assert window.shadowed.n == 60
    assert window.shadowed.mean == pytest.approx(exited.mean().item(), abs=1e-5)
    assert window.not_finite == 0


def test_watching_changes_no_vector(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    before = model.encode(sentences, **MIXED)
    model.monitor = Monitor(model, windows, shadow_rate=0.5)
    assert (model.encode(sentences, **MIXED) == before).all()


def test_only_sampled_sentences_are_shadowed(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows, shadow_rate=0.0)
    model.encode(sentences)
    assert model.monitor.window().shadowed.n == 0
    model.monitor = Monitor(model, windows, shadow_rate=0.3, seed=1)
    model.encode(sentences * 20)
    # 1,200 draws at 0.3: five standard deviations round 360.
    assert 280 < model.monitor.window().shadowed.n < 440


def test_full_and_fixed_depth_are_counted_apart(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows)
    model.encode(sentences[:5], strategy="full")
    model.encode(sentences[:3], strategy="fixed", layer=2)
    window = model.monitor.window()
    assert (window.bypassed, window.sentences, window.mean_layer) == (8, 0, None)
    model.monitor.flush()
    assert read_windows(str(windows)).bypassed == 8


def test_the_file_holds_numbers_and_reads_back(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows / "new", shadow_rate=1.0)
    model.encode(sentences * 5, **MIXED)
    model.monitor.flush()
    (file,) = (windows / "new").iterdir()
    text = file.read_text()
    assert file.name.endswith(f"-{os.getpid()}.json")
    assert not any(sentence in text for sentence in sentences if sentence.count(" ") > 3)
    assert len(text) < 5000
    content = json.loads(text)
    assert sum(content["exit"]["layers"].values()) == content["sentences"] == 300
    assert content["shadow"]["nn_sentences"] == 256
    window = read_windows(str(windows / "new"))
    assert window.as_json() == content


def test_windows_rotate_and_add_up(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows, shadow_rate=1.0, window_hours=1e-9)
    for _ in range(3):
        model.encode(sentences, batch_size=100, **MIXED)
    assert len(list(windows.iterdir())) == 3
    assert model.monitor.window().sentences == 0
    together = read_windows(str(windows))
    assert together.sentences == together.shadowed.n == 180
    one = read_windows(str(min(windows.iterdir())))
    assert one.sentences == 60
    assert together.mean_layer == pytest.approx(one.mean_layer)
    assert together.to_final[2].mean == pytest.approx(one.to_final[2].mean)
    assert together.started == one.started
    assert together.ended > one.ended or together.ended.replace(microsecond=0) == one.ended


def test_old_windows_go(model: LeapEncoder, sentences: list[str], windows: Path, monkeypatch) -> None:
    monkeypatch.setattr(window_writer, "KEEP", 2)
    model.monitor = Monitor(model, windows, window_hours=1e-9)
    names = []
    for _ in range(4):
        model.encode(sentences[:1])
        names.append(max(file.name for file in windows.iterdir()))
    assert sorted(file.name for file in windows.iterdir()) == names[2:]


def test_many_threads_lose_nothing(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows, shadow_rate=0.5, window_hours=2e-5, write_seconds=0.0)
    threads = [
        threading.Thread(target=lambda: [model.encode(sentences, **MIXED) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.monitor.flush()
    assert read_windows(str(windows)).sentences == 4 * 10 * 60
    assert not [file for file in windows.iterdir() if file.name.startswith(".")]


def test_a_folder_that_cannot_be_written_stops_no_request(
    model: LeapEncoder, sentences: list[str], windows: Path, caplog
) -> None:
    model.monitor = Monitor(model, windows, write_seconds=0.0)
    windows.rmdir()
    windows.write_text("in the way")
    for _ in range(3):
        assert model.encode(sentences).shape == (60, 16)
    assert caplog.text.count("serving goes on") == 1
    windows.unlink()
    model.encode(sentences)
    assert read_windows(str(windows)).sentences == 240


def test_vectors_that_are_not_numbers_are_counted_and_left_out(
    model: LeapEncoder, sentences: list[str], windows: Path
) -> None:
    model.monitor = Monitor(model, windows)
    similarities = {3: torch.tensor([0.5, torch.nan, 0.7]), 4: torch.tensor([torch.inf])}
    model.monitor.record(ExitRule(0.95, 2), torch.tensor([3, 5, 3]), similarities)
    window = model.monitor.window()
    assert window.not_finite == 2
    assert window.similarity[2].n == 2
    assert window.similarity[2].mean == pytest.approx(0.6)
    assert window.similarity[3].n == 0
    model.monitor.flush()
    assert read_windows(str(windows)).not_finite == 2


def test_the_last_window_is_written_when_the_process_ends(tiny_folder: Path, windows: Path) -> None:
    code = (
        "import sys; from leap.exits import LeapEncoder; from leap.serve import Monitor\n"
        "model = LeapEncoder(sys.argv[1], 'cpu'); model.monitor = Monitor.from_environment(model)\n"
        "model.encode(['bi bo']); model.encode(['bi', 'du'])  # the first writes, the others do not"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(leap.__file__).absolute().parents[1]),
        "LEAP_MONITOR_FOLDER": str(windows),
        "LEAP_MONITOR_EXPECTED_LAYERS": "2.5",
    }
    subprocess.run([sys.executable, "-c", code, str(tiny_folder)], env=environment, check=True)
    window = read_windows(str(windows))
    assert window.sentences == 3
    assert window.predicted_layer_reduction == 2.0


def test_what_was_counted_is_written_when_the_monitor_is_dropped(
    model: LeapEncoder, sentences: list[str], windows: Path
) -> None:
    model.monitor = Monitor(model, windows, write_seconds=1000.0)
    for _ in range(25):
        model.encode(sentences)
    model.monitor = None
    assert read_windows(str(windows)).sentences == 1500


def test_what_was_counted_is_written_when_traffic_stops(
    model: LeapEncoder, sentences: list[str], windows: Path
) -> None:
    model.monitor = Monitor(model, windows, write_seconds=0.2)
    model.encode(sentences[:1])
    model.encode(sentences)
    assert read_windows(str(windows)).sentences == 1
    deadline = time.monotonic() + 10
    while read_windows(str(windows)).sentences < 61 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read_windows(str(windows)).sentences == 61


def test_a_forked_process_counts_its_own_sentences_only(
    model: LeapEncoder, sentences: list[str], windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process id: PyTorch's threads do not survive a real fork."""
    model.monitor = Monitor(model, windows, write_seconds=1000.0)
    model.encode(sentences)
    model.monitor.flush()
    monkeypatch.setattr(os, "getpid", lambda: 7)
    model.encode(sentences[:7])
    model.monitor.flush()
    assert sorted(read_windows(str(file)).sentences for file in windows.iterdir()) == [7, 60]


def test_every_requests_own_rule_is_counted(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    model.monitor = Monitor(model, windows)
    model.encode(sentences[:5])
    model.encode(sentences[:7], threshold=0.5, min_layer=2)
    model.encode(sentences[:2], strategy="patience", pabee_patience=2, min_layer=2)
    assert model.monitor.window().rules == {
        "converged: threshold 0.95, patience 1, min_layer 5": 5,
        "converged: threshold 0.5, patience 1, min_layer 2": 7,
        "patience: threshold 0.95, patience 1, pabee_patience 2, min_layer 2": 2,
    }
    for number in range(100):
        model.encode("bi", threshold=number / 1000)
    assert len(model.monitor.window().rules) == window_writer.MOST_RULES + 1
    assert sum(model.monitor.window().rules.values()) == 114


def test_other_files_in_the_folder_stay(
    model: LeapEncoder, sentences: list[str], windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_writer, "KEEP", 1)
    windows.mkdir()
    (windows / "2020.json").write_text("mine")
    model.monitor = Monitor(model, windows, window_hours=1e-9)
    for _ in range(3):
        model.encode(sentences[:1])
    assert (windows / "2020.json").read_text() == "mine"
    assert len(list(windows.iterdir())) == 2


def test_no_variable_no_monitor(tiny_model: LeapEncoder) -> None:
    assert Monitor.from_environment(tiny_model, {"LEAP_MONITOR_FOLDER": ""}) is None


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SHADOW_RATE", "1 %", "LEAP_MONITOR_SHADOW_RATE='1 %'"),
        ("SHADOW_RATE", "1.5", "shadow_rate 1.5"),
        ("SHADOW_RATE", "nan", "shadow_rate nan"),
        ("WINDOW_HOURS", "nan", "window_hours nan"),
        ("EXPECTED_LAYERS", "7", "expected_layers 7"),
        ("FOLDER", "/dev/null/windows", "cannot be made"),
    ],
)
def test_settings_that_are_wrong(
    tiny_model: LeapEncoder, windows: Path, name: str, value: str, named: str
) -> None:
    values = {"LEAP_MONITOR_FOLDER": str(windows), f"LEAP_MONITOR_{name}": value}
    with pytest.raises(UserError, match=named):
        Monitor.from_environment(tiny_model, values)


def test_windows_that_do_not_go_together(
    model: LeapEncoder, make_folder: MakeFolder, sentences: list[str], windows: Path
) -> None:
    with pytest.raises(UserError, match="no window files"):
        read_windows(str(windows))
    for each in (model, LeapEncoder(make_folder(seed=1), "cpu")):
        each.monitor = Monitor(each, windows)
        each.encode(sentences)
        each.monitor.flush()
    with pytest.raises(UserError, match="another model"):
        read_windows(str(windows))
    other = windows / "other.json"
    other.write_text('{"kind": "diagnose"}')
    with pytest.raises(UserError, match="is not a window file"):
        read_windows(str(other))


def test_a_windows_times_are_in_utc(model: LeapEncoder, sentences: list[str], windows: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    model.monitor = Monitor(model, windows)
    model.encode(sentences)
    model.monitor.flush()
    window = read_windows(str(windows))
    assert before <= window.started <= window.ended <= datetime.now(UTC)


def test_the_registered_model_is_watched_where_the_variable_says_so(
    tiny_folder: Path, windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    import pandas as pd

    from leap.registry.runtime_code import runtime_modules
    from leap.registry.served_model import ServedLeap

    # A registered model brings its own copy of what it imports.
    assert {"leap.serve.monitor", "leap.serve.window"} <= runtime_modules()
    assert "leap.serve.compare_windows" not in runtime_modules()
    monkeypatch.setenv("LEAP_MONITOR_FOLDER", str(windows))
    served = ServedLeap()
    served.load_context(SimpleNamespace(artifacts={"checkpoint": str(tiny_folder)}))
    served.predict(None, pd.DataFrame({"sentence": ["bi bo", "du"]}), {"strategy": "converged"})
    assert read_windows(str(windows)).sentences == 2
