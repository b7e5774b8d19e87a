"""tools/benchmark_libraries.py: other libraries."""

import pytest
import torch
from benchmark_libraries import Library, Padded, _Pooled, benchmark, padded, time_limit

from leap.core.settings.evaluation import LatencySettings
from leap.exits import LeapEncoder
from leap.latency.latency_table import latency_settings
from leap.models.batches import pack


def settings() -> LatencySettings:
    return latency_settings(
        batch_sizes=[4], lengths=["sentences"], warmup=0, iterations=5, device="cpu", precision="fp32"
    )


def test_libraries_compute_the_same_in_the_same_rounds(
    tiny_model: LeapEncoder, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: LeapEncoder) -> Padded:
        raise OSError("no compiler\nand more")

    def other(_: LeapEncoder) -> Padded:
        return lambda ids, mask: torch.ones(len(ids), 16)

    def eager(model: LeapEncoder) -> Padded:
        return _Pooled(model, "eager")

    opened = {"sentence_transformers": eager, "torch_compile": broken, "onnxruntime": other}
    monkeypatch.setattr("benchmark_libraries.LIBRARIES", opened)
    monkeypatch.setattr("leap.latency.bandwidth.READ_BYTES", 2**20)
    monkeypatch.setattr("leap.latency.timing.cpu_timer", lambda path, batch: path(batch) is not None and 2.0)
    figures = benchmark(tiny_model, sentences, list(opened), settings())
    (row,) = (row for row in figures["rows"] if row["path"] == "sentence_transformers")
    assert (row["expected_layers"], row["ms_p50"], row["speed_up"], row["over"]) == (5, 2.0, 1.0, "full")
    assert set(figures["libraries_missing"]) == {"torch_compile", "onnxruntime"}
    assert figures["libraries_missing"]["torch_compile"] == "OSError: no compiler"
    assert "its vectors differ" in figures["libraries_missing"]["onnxruntime"]


def test_padded_by_hand() -> None:
    ids, mask = padded(pack([[7], [8, 9], [5, 6, 4]]), pad_token=1)
    assert ids.tolist() == [[7, 1, 1], [8, 9, 1], [5, 6, 4]]
    assert mask.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    batches = [pack([[7], [8, 9]]), pack([[5]])]
    forward = Library(lambda ids, mask: ids * mask, pad_token=1).prepared(batches)
    assert [forward(batch).tolist() for batch in batches] == [[[7, 0], [8, 9]], [[5]]]


def test_what_takes_too_long_is_stopped() -> None:
    def forever() -> None:
        with time_limit(1):
            while True:
                pass

    with pytest.raises(TimeoutError, match="more than 1 s"):
        forever()
