"""Bulk encoding on a real Spark cluster of two worker processes, against one process.

LEAP_SLOW=1 pytest tests/pipeline/test_bulk.py      # needs pip install -e '.[bulk]' and Java; two minutes
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from temporary_repository import PROJECT

from leap.exits import LeapEncoder
from leap.registry.package_model import write_model_folder

sys.path.insert(0, str(PROJECT / "tests" / "unit"))
from tiny_models import WORDS, write_folder

pytestmark = [
    pytest.mark.skipif(os.environ.get("LEAP_SLOW") != "1", reason="two minutes: LEAP_SLOW=1 runs it"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]

SCRIPT = PROJECT / "tools" / "encode_with_spark.py"


def test_two_workers_give_the_vectors_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra `bulk` is not installed")
    folder = write_folder(tmp_path / "tiny")
    # Rows of this model leave at layers 3, 4 and 5.
    rule = {"threshold": 0.885, "min_layer": 2, "patience": 2}
    (folder / "leap.json").write_text(json.dumps({"exit": rule}))
    write_model_folder(folder, tmp_path / "model", {}, None)
    generator = random.Random(7)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 20))) for _ in range(5000)]
    # Documents that together are more than a server takes in one request, and one that is more by itself.
    texts[:1200] = [" ".join(generator.choices(WORDS, k=900)) for _ in range(1199)] + ["bi " * 8000]
    table = pd.DataFrame({"number": range(5002), "a.text": [None, *texts, None], "my.id": 7})
    table.to_parquet(tmp_path / "texts.parquet")

    command = [sys.executable, str(SCRIPT), "--master", "local-cluster[2,1,1024]", "--exit-layers"]
    command += ["--model", str(tmp_path / "model"), "--column", "a.text", "--partitions", "8"]
    command += ["--input", str(tmp_path / "texts.parquet"), "--output", str(tmp_path / "vectors")]
    events = tmp_path / "events"
    events.mkdir()
    options = {"eventLog.enabled": "true", "eventLog.compress": "false", "eventLog.dir": str(events)}
    options["ui.enabled"] = "false"
    submit = "".join(f"--conf spark.{name}={value} " for name, value in options.items())
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["sentences"], summary["left_out"]) == (5000, 2)
    assert workers_of(events) == {"0", "1"}

    written = pd.read_parquet(tmp_path / "vectors").sort_values("number")
    assert written["number"].tolist() == list(range(1, 5001))
    vectors, layers = LeapEncoder(folder, "cpu").encode(texts, return_exit_layers=True)
    assert set(layers.tolist()) == {3, 4, 5}
    # Other batches may round the last bits differently, and a cosine at the threshold may fall either way.
    same = written["exit_layer"].to_numpy() == layers
    assert same.mean() > 0.999
    np.testing.assert_allclose(np.stack(list(written["vector"]))[same], vectors[same], atol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sentence": ["a"], "Vector": [1]}, "has a column vector, which the output would have twice"),
        ({"text": ["a"]}, "has no column sentence: its columns are text"),
        ({"sentence": [1]}, "has the column sentence of type bigint: expected string"),
        (None, "PATH_NOT_FOUND"),
    ],
)
def test_what_cannot_be_encoded_is_one_line(
    tmp_path: Path, table: dict[str, list[object]] | None, message: str
) -> None:
    pytest.importorskip("pyspark", reason="the extra `bulk` is not installed")
    if table is not None:
        pd.DataFrame(table).to_parquet(tmp_path / "texts.parquet")
    command = [sys.executable, str(SCRIPT), "--master", "local[1]", "--model", "unused"]
    command += ["--input", str(tmp_path / "texts.parquet"), "--output", str(tmp_path / "vectors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in done.stderr


def workers_of(events: Path) -> set[str]:
    """The executors that ran the model, by Spark's own log of the job."""
    result = set()
    for file in events.rglob("events_*"):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["Event"] == "SparkListenerTaskEnd" and "Python" in json.dumps(line):
                result.add(line["Task Info"]["Executor ID"])
    return result
