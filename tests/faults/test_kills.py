"""SIGKILL at random moments of every stage: the next `dvc repro` ends as if nothing had happened.

    make test-faults        # prints at its end what every kill hit

The pipeline of the embedded profile, smaller in numbers only, is reproduced once undisturbed, and twice under
kills: once DVC and its stage die together, once the stage alone. Moments are drawn over the time from a
stage's start until the next one's, so that DVC is hit too while it stores outputs and writes dvc.lock.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from killing import Kill, finish, kill_at_random, spans, table
from same_results import assert_same_results, registry, unfinished
from temporary_repository import Repository
from tiny_pipeline import LENIENT

SEED = 20261128
# Single stages are hit three times in each of the two ways, each item of a matrix once, or twice where the
# model is at stake.
SINGLE = ("settings", "extract", "validate", "cache_teacher", "report", "promote")
TWICE = ("train", "calibrate")
STAGES = {
    "settings", "extract", "validate", "cache_teacher", "train", "calibrate", "diagnose", "evaluate_sts",
    "evaluate_retrieval", "benchmark_latency", "gate", "report", "promote",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Kill], Path, list[Path]]:
    """All kills, the undisturbed project, and those that were killed and then finished."""
    folder = tmp_path_factory.mktemp("kills")
    changes = (*LENIENT, "train.epochs=2", "train.checkpoint_every=4")
    undisturbed = Repository(folder / "undisturbed", "embedded", changes)
    killed = [undisturbed.copy(folder / name) for name in ("together", "alone")]
    times = spans(undisturbed, folder / "undisturbed.log")
    wanted = Counter({item: _hits(item) for item in times})

    def suffer(number: int) -> list[Kill]:
        logs = folder / f"logs-{number}"
        logs.mkdir()
        kills = kill_at_random(killed[number], times, wanted, SEED + number, alone=number == 1, logs=logs)
        finish(killed[number], logs / "last.log")
        return kills

    with ThreadPoolExecutor(2) as pool:
        kills = [kill for results in pool.map(suffer, range(2)) for kill in results]
    return kills, undisturbed.root, [repository.root for repository in killed]


def _hits(item: str) -> int:
    stage = item.partition("@")[0]
    return 3 if stage in SINGLE else 2 if stage in TWICE else 1


def test_every_stage_was_hit_and_fifty_processes_died(
    outcome: tuple[list[Kill], Path, list[Path]], record_property: Callable[[str, object], None]
) -> None:
    kills, *_ = outcome
    record_property("table", table(kills))
    assert len(kills) >= 50
    assert all(kill.by == 9 for kill in kills)
    by_stage = Counter(kill.stage for kill in kills)
    assert set(by_stage) == STAGES
    assert min(by_stage.values()) >= 2
    assert {kill.died for kill in kills} >= {"DVC and stage", "stage"}


def test_the_results_are_those_of_an_undisturbed_run(outcome: tuple[list[Kill], Path, list[Path]]) -> None:
    _, undisturbed, killed = outcome
    for project in killed:
        assert_same_results(project, undisturbed)


def test_nothing_unfinished_is_left(outcome: tuple[list[Kill], Path, list[Path]]) -> None:
    _, undisturbed, killed = outcome
    for project in (undisturbed, *killed):
        assert list(unfinished(project)) == []


def test_the_registry_has_each_content_once_and_one_champion(
    outcome: tuple[list[Kill], Path, list[Path]],
) -> None:
    _, undisturbed, killed = outcome
    for project in (undisturbed, *killed):
        result = registry(project)
        assert result["aliases"] == [("champion", 1)]
        assert [version for version, *_ in result["versions"]] == [1]
        assert result["uploads"] == [("baseline-1", 2), ("leap-1", 2)]  # one upload each, READY
        weights = project / "models" / "leap-1" / "model.safetensors"
        uploaded = (project / "mlruns" / "artifacts" / "models").rglob("model.safetensors")
        assert weights.read_bytes() in [path.read_bytes() for path in uploaded]


def test_the_next_run_has_nothing_to_do(outcome: tuple[list[Kill], Path, list[Path]]) -> None:
    *_, killed = outcome
    for project in killed:
        repository = object.__new__(Repository)
        repository.root = project
        assert repository.ran(repository.run("dvc", "repro")) <= {"promote"}
        shutil.rmtree(project, ignore_errors=True)
