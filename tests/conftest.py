"""Fixtures that several unit tests share."""

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import WORDS, MakeFolder, write_folder

from leap.exits import LeapEncoder

# Files that take minutes, the longest first: with two workers and a file as the unit of work, the one that is
# begun last must not be the one that takes longest.
LONGEST = (
    "test_real_files.py",
    "test_pipeline.py",
    "test_served_model.py",
    "test_tracking_server.py",
    "test_registry.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest files; all others keep their order."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of models with the tests; all workers of a run share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAP_CACHE", str(tmp_path_factory.getbasetemp().parent / "leap-cache"))
        yield


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was() -> Iterator[None]:
    """A command sets the log's level, by which bars are shown; MLflow puts a model's code on the path."""
    package = logging.getLogger("leap")
    level, path = package.level, sys.path[:]
    yield
    package.setLevel(level)
    sys.path[:] = path


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Builds a tiny model folder: layers, width, seed, normalize."""
    made = iter(range(100))
    return lambda **options: write_folder(tmp_path / f"model-{next(made)}", **options)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of five layers and width 16."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> LeapEncoder:
    """The same, loaded."""
    return LeapEncoder(tiny_folder, "cpu")


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Sixty different sentences of 1 to 20 words."""
    generator = random.Random(5)
    result: dict[str, None] = {}
    while len(result) < 60:
        result[" ".join(generator.choices(WORDS, k=generator.randint(1, 20)))] = None
    return list(result)
