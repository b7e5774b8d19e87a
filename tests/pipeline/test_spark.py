"""extract and cache_teacher on Spark write the files of one machine, byte for byte.

pytest tests/pipeline/test_spark.py      # needs pip install -e '.[bulk]' and Java
"""

import os
import random
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from temporary_repository import PROJECT
from tiny_models import WORDS, write_folder

from leap.core.files import read_json, sha256_of
from leap.core.settings.profiles import compose

pytest.importorskip("pyspark", reason="the extra `bulk` is not installed")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")

SETTINGS = (
    "data.folder=inputs",
    "data.max_sentences=4200",
    "data.held_out=0.1",
    "data.passages={share: 0.1, sentences: [2, 3]}",
    "data.sources={tables: {kind: local, path: 'text-*.csv'}, lines: {kind: local, path: lines.jsonl.gz},"
    " docstrings: {kind: package, packages: [jinja2]}}",
    "retrieval.docstrings={kind: package, packages: [jinja2], queries: 10, documents: 10}",
    "teacher={kind: local, path: teacher}",
    "train.teacher=cached",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources with duplicates within and across them, evaluation texts, short and long ones."""
    place = tmp_path_factory.mktemp("spark") / "project"
    inputs = place / "inputs"
    inputs.mkdir(parents=True)
    generator = random.Random(3)
    made = [" ".join(generator.choices(WORDS, k=generator.randint(2, 50))) for _ in range(6000)]
    pairs = pd.read_csv(PROJECT / "src/leap/resources/similarity/pairs.csv")
    pairs.to_csv(inputs / "pairs.csv", index=False)
    texts = [f"{text.capitalize()}. {other.capitalize()}." for text, other in pairwise(made)] + made
    texts += [text.upper() for text in made[:500]] + pairs["sentence1"].tolist()[:50]
    for number in range(3):
        frame = pd.DataFrame({"text": generator.sample(texts, 5000)})
        frame.to_csv(inputs / f"text-{number}.csv", index=False)
    (inputs / "text-3.csv").write_text("text\n")
    frame = pd.DataFrame({"text": [*generator.sample(texts, 5000), None]})
    frame.to_json(inputs / "lines.jsonl.gz", orient="records", lines=True)
    write_folder(place / "teacher")
    (place / "params.yaml").write_text(compose("embedded", PROJECT / "profiles", SETTINGS))
    return place


def run(project: Path, stage: str, master: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROJECT / "stages" / f"{stage}.py")],
        cwd=project,
        env={**os.environ, "LEAP_SPARK": master, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_workers_write_the_files_of_one_machine(project: Path) -> None:
    written = []
    for master in ("", "local[2]"):
        for stage in ("extract", "cache_teacher"):
            done = run(project, stage, master)
            assert done.returncode == 0, done.stderr
        files = [path for path in (project / "data").rglob("*") if path.is_file()]
        written.append({str(path.relative_to(project)): sha256_of(path) for path in files})
        counts = read_json(project / "data" / "extract.json", "")
        shutil.rmtree(project / "data")
    assert written[0] == written[1]
    assert {f"data/teacher/shard-0000{number}.bin" for number in range(5)} <= written[0].keys()
    # Nothing of what is compared is empty.
    reasons = ("split", "too_short", "too_long", "evaluation", "duplicate", "held_out", "not_sampled", "passages")
    assert all(counts[reason] > 0 for reason in reasons)
    assert (counts["kept"], list(counts["sources"])) == (4200, ["tables", "lines", "docstrings"])


def test_a_worker_names_the_wrong_value_as_one_machine_does(project: Path) -> None:
    lines = project / "inputs" / "text-4.csv"
    lines.write_text('text\none\n"two\n')
    try:
        errors = [run(project, "extract", master).stderr.splitlines()[-1] for master in ("", "local[2]")]
    finally:
        lines.unlink()
    assert (
        errors
        == ["error: inputs/text-4.csv, line 3: not well-formed (unexpected end of data): correct the line"] * 2
    )
    assert not (project / "data").exists() or not list((project / "data").iterdir())


def test_a_cluster_that_is_none_is_one_line(project: Path) -> None:
    done = run(project, "extract", "my-cluster")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: Spark does not start with LEAP_SPARK=my-cluster (")
    assert "Traceback" not in done.stderr
