"""Compares the results of two projects: every file, every run, the registry; times aside."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare_runs

RESULTS = ("data", "students", "models", "evaluations", "verdicts", "metrics", "reports", "studies")
# Metrics of MLflow that are times, or made of them.
TIMED = ("latency/", "train/sentences_per_second", "train/seconds", "speed_up", "query_speed_up", "teacher/")
# Great Expectations names its pages by the moment; pages and pictures of the report show times.
OF_THE_DAY = re.compile(r"reports/(data_docs/|report\.|paper\.|plots/(latency|frontier))")


def assert_same_results(found: Path, expected: Path) -> None:
    """Compares two projects that were reproduced from the same settings, data and code."""
    here, there = paths(found), paths(expected)
    assert here == there, f"only here: {sorted(here - there)}; only there: {sorted(there - here)}"
    for name in sorted(paths(expected)):
        one, other = found / name, expected / name
        if one.is_file() and name != "dvc.lock" and not OF_THE_DAY.match(name):
            assert content(one) == content(other), name
    assert registry(found) == registry(expected), (registry(found), registry(expected))
    assert runs(found) == runs(expected), (runs(found), runs(expected))


def paths(project: Path) -> set[str]:
    """Every file and folder that the pipeline made, hidden ones too, but for empty ones: DVC restores none."""
    made = {
        re.sub(r"data_docs/.*", "data_docs", path.relative_to(project).as_posix())
        for folder in RESULTS
        for path in (project / folder).rglob("*")
        if not path.is_dir() or any(path.iterdir())
    }
    made |= {path.name for path in project.iterdir() if not path.name.startswith("params.yaml")}
    return {path for path in made if "__pycache__" not in path}


def content(path: Path) -> Any:
    """Read a file without the times in it."""
    if path.name == "latency.json":
        rows = json.loads(path.read_text())["rows"]
        return [{key: row[key] for key in ("path", "batch", "length", "expected_layers")} for row in rows]
    return compare_runs.content(path)


def registry(project: Path) -> dict[str, Any]:
    """The registered versions with their content and aliases, and every upload there ever was."""
    with closing_copy(project) as database:
        versions = database.execute("select version, run_id is not null, current_stage from model_versions")
        tags = database.execute(
            "select version, key, value from model_version_tags where key not in "
            "('leap.examined', 'leap.events', 'leap.verdict')"
        )
        aliases = database.execute("select alias, version from registered_model_aliases")
        uploads = database.execute("select name, status from logged_models")
        return {
            "versions": sorted(versions),
            "tags": sorted(tags),
            "aliases": sorted(aliases),
            "uploads": sorted(uploads),
        }


def runs(project: Path) -> dict[str, Any]:
    """The runs that count: settings, figures by step, status. Runs of killed trainings are not results."""
    with closing_copy(project) as database:
        status = dict(
            database.execute("select run_uuid, status from runs where lifecycle_stage = 'active'").fetchall()
        )
        assert "RUNNING" not in status.values()
        names = dict(database.execute("select run_uuid, name from runs").fetchall())
        finished = {run for run, state in status.items() if state == "FINISHED"}
        metrics = [
            (names[run], key, step, round(value, 9))
            for run, key, step, value in database.execute("select run_uuid, key, step, value from metrics")
            if run in finished and not key.startswith(TIMED)
        ]
        twice = {key: count for key, count in Counter(item[:3] for item in metrics).items() if count > 1}
        assert not twice, f"logged twice: {list(twice)[:5]}"
        params = [
            (names[run], key, value)
            for run, key, value in database.execute("select run_uuid, key, value from params")
            if run in finished
        ]
        tagged = [
            (names[run], key)
            for run, key in database.execute("select run_uuid, key from tags")
            if run in finished and key.startswith("leap.") and key != "leap.process"
        ]
    return {
        "runs": sorted(names[run] for run in finished),
        "metrics": sorted(metrics),
        "params": sorted(params),
        "tags": sorted(tagged),
    }


class closing_copy:  # noqa: N801 - a context manager, used as one
    """An open connection to a project's MLflow store."""

    def __init__(self, project: Path) -> None:
        self._connection = sqlite3.connect(project / "mlruns" / "mlflow.db")

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def unfinished(project: Path) -> Iterator[Path]:
    """Find the files of a process that is at work: parts, states of trainings, sidecars of a cache."""
    for pattern in (".*.part", "*.state", "building.json", "shard-*.json"):
        yield from project.rglob(pattern)
