"""One reproduced pipeline for all files of this folder, made once however many workers there are."""

import pytest
from filelock import FileLock
from temporary_repository import Repository
from tiny_pipeline import LENIENT


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Repository:
    """The tiny pipeline after `dvc repro`, committed with its dvc.lock; to be copied, never changed."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    place = shared / "reproduced"
    with FileLock(shared / "reproduced.lock"):
        if (place / "ready").is_file():
            return Repository.at(place / "project", "embedded", LENIENT)
        place.mkdir()
        repository = Repository(place / "project", "embedded", LENIENT)
        repository.run("dvc", "repro")
        repository.commit()
        (place / "ready").touch()
        return repository


@pytest.fixture(scope="module")
def repository(reproduced: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A file's own copy, on which its tests build in their order."""
    return reproduced.copy(tmp_path_factory.mktemp("project") / "project")
