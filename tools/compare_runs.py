"""Do two project folders hold the same results? Times and what follows from them aside.

    python tools/compare_runs.py ONE OTHER

Compares, file by file, data/, students/, models/, evaluations/, verdicts/, metrics/ and studies/ of both:
weights and data by their bytes, JSON by its values. Left aside: latency and what is decided by it, seconds and
rates, the machine and the commit, checksums. The same settings, data and code on the same machine must give the
same results; exit code 1 and the names of what differs tell where they do not.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leap.core.files import sha256_of

FOLDERS = ("data", "students", "models", "evaluations", "verdicts", "metrics", "studies")
# Caches that may be deleted at any time, MLflow's copies, plots and work of a study.
SKIPPED = ("data/vectors", "data/tokens", "studies/work", "studies/plots")
ASIDE = {
    *(
        "environment",
        "hardware",
        "commits",
        "checksum",
        "evidence",
        "registry",
        "seconds",
        "sentences_per_second",
    ),
    *("latency", "latency_by_layer", "latency_by_threshold", "floor", "ms_p50", "rows_per_second"),
    *("speed_up", "speed_up_ci95", "query_speed_up", "query_speed_up_ci95"),
}
SHOWN = 5


def main() -> int:
    """Prints what differs, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    arguments = parser.parse_args()
    found, compared = compare(arguments.one, arguments.other)
    for line in found:
        sys.stdout.write(f"{line}\n")
    if compared == 0:
        sys.exit(f"error: {arguments.one} and {arguments.other} hold no results: name two project folders")
    sys.stdout.write(f"{compared} files compared, {len(found)} differ\n")
    return 1 if found else 0


def compare(one: Path, other: Path) -> tuple[list[str], int]:
    """A line for every file that differs, and how many were compared."""
    names, others = results(one), results(other)
    lines = [f"{name}: only in {one}" for name in sorted(names - others)]
    lines += [f"{name}: only in {other}" for name in sorted(others - names)]
    for name in sorted(names & others):
        found = list(differences(content(one / name), content(other / name)))
        if found:
            more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            lines.append(f"{name}: {', '.join(found[:SHOWN])}{more}")
    return lines, len(names | others)


def results(project: Path) -> set[str]:
    """The result files, as paths in the project."""
    found = (path for folder in FOLDERS for path in (project / folder).rglob("*") if path.is_file())
    names = {path.relative_to(project).as_posix() for path in found}
    return {name for name in names if not name.startswith(SKIPPED) and not name.endswith("latency.json")}


def content(path: Path) -> Any:
    """What a file says of its results."""
    try:
        if path.suffix == ".json":
            return judged(json.loads(path.read_text(encoding="utf-8")), path)
        if path.suffix == ".jsonl" and path.name == "history.jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            return [judged(json.loads(line), path) for line in lines]
    except ValueError as error:
        sys.exit(f"error: {path} is not JSON ({error})")
    return sha256_of(path)


def judged(value: Any, path: Path) -> Any:
    """A JSON value without what depends on time."""
    if isinstance(value, list):
        return [judged(item, path) for item in value if not timed(item)]
    if not isinstance(value, dict):
        return value
    aside = set(ASIDE)
    if path.name == "training.json":
        aside.add("history")  # the hash of a file with times in it, whose lines are compared themselves
    checks = value.get("checks")
    if isinstance(checks, list) and any(timed(check) for check in checks):
        aside.add("passed")
    return {key: judged(item, path) for key, item in value.items() if key not in aside}


def timed(item: Any) -> bool:
    """Whether an entry is a check of latency."""
    return isinstance(item, dict) and str(item.get("metric", "")).startswith("latency.")


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two JSON values differ; numbers must be equal to the last digit."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            inner = f"{place}.{key}" if place else key
            if key in one and key in other:
                yield from differences(one[key], other[key], inner)
            else:
                yield f"{inner} is only in one"
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif one != other:
        yield f"{place or 'content'} {short(one)} and {short(other)}"


def short(value: Any) -> str:
    """A value in a few characters."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


if __name__ == "__main__":
    sys.exit(main())
