"""Full disks, read-only folders, limits; a project that is moved, and one that is cloned; a clock that jumps.

One small project is reproduced once; each test breaks something for one command and looks at what it says
and leaves.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from broken_disk import full, needs_mounts, read_only, small_files
from same_results import RESULTS, registry, runs, unfinished
from temporary_repository import Repository
from tiny_pipeline import LENIENT

from leap.core.files import sha256_of

LEAP = (sys.executable, "-c", "from leap.cli import run; run()")
ITEM = ("--variant", "leap", "--seed", "1")
# Each stage with where it writes first, and less room there than it needs.
WRITES = {
    "extract": ("data", "16k", ()),
    "validate": ("reports", "64k", ()),
    "cache_teacher": ("data/teacher", "64k", ()),
    "train": ("students", "64k", ITEM),
    "calibrate": ("models", "64k", ITEM),
    "diagnose": ("evaluations/leap-1", "8k", ITEM),
    "evaluate_sts": ("evaluations/leap-1/sts", "8k", (*ITEM, "--set", "software")),
    "evaluate_retrieval": ("evaluations/leap-1/retrieval", "4k", (*ITEM, "--set", "docstrings")),
    "benchmark_latency": ("evaluations/leap-1", "4k", ITEM),
    "gate": ("verdicts", "4k", ITEM),
    "report": ("reports", "16k", ()),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("disk") / "project", "embedded", LENIENT)
    repository.run("dvc", "repro")
    repository.commit()
    return repository


def stage(name: str) -> tuple[str, ...]:
    return (sys.executable, f"stages/{name}.py", *WRITES[name][2])


def files(project: Path) -> dict[str, str]:
    """Every result file with its content."""
    return {
        str(path.relative_to(project)): sha256_of(path)
        for folder in RESULTS
        for path in (project / folder).rglob("*")
        if path.is_file()
    }


def said_once(output: str, *words: str) -> None:
    """One message, which names the input, what is wrong and the way out; no traceback."""
    assert output.count("error: ") == 1, output
    assert "Traceback" not in output, output
    message = output.partition("error: ")[2]
    for word in words:
        assert word in message, output


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk(repository: Repository, name: str) -> None:
    needs_mounts()
    place, size, _ = WRITES[name]
    before = files(repository.root)
    output = repository.run(*full(repository.root / place, size, *stage(name)), expect=1)
    said_once(output, place, "No space left on device", "MB free", "free space, then run the same command again")
    assert files(repository.root) == before
    assert list(unfinished(repository.root)) == []


@pytest.mark.parametrize("name", ["extract", "evaluate_sts", "gate", "report"])
def test_a_read_only_folder(repository: Repository, name: str) -> None:
    needs_mounts()
    place = WRITES[name][0]
    output = repository.run(*read_only(repository.root / place, *stage(name)), expect=1)
    said_once(output, place, "Read-only file system", "make it writable")


def test_a_limit_on_the_size_of_files(repository: Repository) -> None:
    shutil.move(repository.root / "students", repository.root / "moved away")
    try:
        output = repository.run(*small_files(64, *stage("train")), expect=1)
        said_once(output, "students/leap-1", "File too large", "ulimit -f")
        assert list(unfinished(repository.root)) == []
    finally:
        shutil.rmtree(repository.root / "students", ignore_errors=True)
        shutil.move(repository.root / "moved away", repository.root / "students")


def test_a_limit_on_the_table_that_validate_judges(repository: Repository) -> None:
    output = repository.run(*small_files(16, *stage("validate")), expect=1)
    said_once(output, "data/sentences.db cannot be written", "run the same command again")
    assert list(unfinished(repository.root)) == []


def test_a_file_where_a_folder_should_be(repository: Repository) -> None:
    folder = repository.root / "verdicts"
    folder.rename(repository.root / "verdicts.kept")
    folder.write_text("a file")
    try:
        output = repository.run(*stage("gate"), expect=1)
        said_once(output, "verdicts", "a file lies where a folder is needed: move it away")
    finally:
        folder.unlink()
        (repository.root / "verdicts.kept").rename(folder)


def test_dvc_repro_goes_on_once_there_is_room(repository: Repository, tmp_path: Path) -> None:
    needs_mounts()
    here = repository.copy(tmp_path / "project")
    here.write("variants.leap.exit={threshold: 0.9}")
    broken = full(here.root / "evaluations/leap-1/sts", "8k", "dvc", "repro", "evaluate_sts@leap-1-software")
    output = here.run(*broken, expect=255)
    said_once(output.replace("ERROR: ", ""), "evaluations/leap-1/sts", "No space left on device")
    output = here.run("dvc", "repro")
    assert "evaluate_sts@leap-1-software" in here.ran(output)
    assert "train@leap-1" not in here.ran(output)
    assert here.json("evaluations/leap-1/sts/software.json")["exit_rule"]["threshold"] == 0.9
    assert here.ran(here.run("dvc", "repro")) <= {"promote"}


def test_a_store_on_a_full_disk_costs_a_warning_and_a_promotion_its_success(
    repository: Repository, tmp_path: Path
) -> None:
    needs_mounts()
    here = repository.copy(tmp_path / "project")
    before, mlruns = files(here.root), here.root / "mlruns"
    output = here.run(*full(mlruns, "64k", sys.executable, "stages/promote.py"), expect=1)
    said_once(output, "MLflow at sqlite:///", "run again")
    assert files(here.root) == before
    output = here.run(*full(mlruns, "64k", *stage("train")))
    assert "`dvc repro` or `leap track` logs what is missing" in output
    assert "Traceback" not in output
    here.run(*LEAP, "track")
    assert "RUNNING" not in runs(here.root)["runs"]


def still_works(project: Path, environment: Repository) -> None:
    """Models, runs and the registry load in this place, and there is nothing to do again."""
    here = Repository.__new__(Repository)
    here.root = project
    code = (
        "import sys\nimport numpy as np\nfrom leap.exits import LeapEncoder\n"
        "np.save(sys.argv[2], LeapEncoder(sys.argv[1], 'cpu').encode(['How do I sort a list?']))"
    )
    here.run(sys.executable, "-c", code, "models/leap-1", "own.npy")
    assert "champion" in here.run(*LEAP, "history")
    here.run(*LEAP, "gate", "evaluations/leap-1", "--models", "models")
    here.run(*LEAP, "export", "models:/leap-docstrings@champion", "exported", "--to", "sentence-transformers")
    here.run(sys.executable, "-c", code, "exported", "champion.npy")
    np.testing.assert_array_equal(np.load(project / "own.npy"), np.load(project / "champion.npy"))
    here.run(*LEAP, "track")
    assert here.ran(here.run("dvc", "repro")) <= {"promote"}


def test_a_project_that_is_moved(repository: Repository, tmp_path: Path) -> None:
    before = registry(repository.root), runs(repository.root)
    moved = tmp_path / "elsewhere" / "moved project"
    moved.parent.mkdir()
    shutil.move(repository.root, moved)
    try:
        still_works(moved, repository)
        assert (registry(moved), runs(moved)) == before
    finally:
        shutil.move(moved, repository.root)


def test_a_project_that_is_cloned_with_its_results(repository: Repository, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    repository.run("git", "clone", "-q", str(repository.root), str(clone))
    for folder in (".dvc/cache", "mlruns", *filter(lambda name: (repository.root / name).exists(), RESULTS)):
        shutil.copytree(repository.root / folder, clone / folder, dirs_exist_ok=True)
    still_works(clone, repository)


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_clock_that_jumps_in_the_middle(repository: Repository, seconds: int, tmp_path: Path) -> None:
    """A day back or ahead, half a second into the training, and again in what follows."""
    shutil.copytree(repository.root, tmp_path / "project", symlinks=True)
    here = Repository.__new__(Repository)
    here.root = tmp_path / "project"
    shutil.rmtree(here.root / "students" / "leap-1")
    clock = str(Path(__file__).parents[1] / "support" / "jumping_clock.py")
    before = registry(here.root)["aliases"], sha256_of(repository.root / "students/leap-1/model.safetensors")
    here.run(sys.executable, clock, str(seconds), *stage("train")[1:])
    training = here.json("evaluations/leap-1/training/training.json")
    assert 0 <= training["seconds"] < 600
    assert training["sentences_per_second"] > 0
    here.run(sys.executable, clock, str(seconds), *stage("benchmark_latency")[1:])
    assert all(0 < row["ms_p50"] < 60_000 for row in here.json("evaluations/leap-1/latency.json")["rows"])
    here.run(sys.executable, clock, str(seconds), *stage("gate")[1:])
    here.run(sys.executable, clock, str(seconds), "stages/promote.py")
    after = registry(here.root)["aliases"], sha256_of(here.root / "students/leap-1/model.safetensors")
    assert after == before
    assert json.loads(here.run("dvc", "status", "--json", "extract")) == {}
    subprocess.run(["git", "status"], cwd=here.root, check=True, stdout=subprocess.DEVNULL)
