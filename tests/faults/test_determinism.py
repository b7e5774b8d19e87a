"""The same settings, data and code give the same results to the last bit: weights, data and every figure.

Two fresh projects, with another order of Python's sets and another schedule of two threads: one may use
both cores, the other has its two threads take turns on one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from temporary_repository import PROJECT, Repository
from tiny_pipeline import TINY

STAGES = "extract,cache_teacher,train,calibrate,diagnose,evaluate_sts,evaluate_retrieval"
ALONE = (
    *TINY,
    "variants={leap: {description: the paper's}}",
    "gate.baseline=leap",
    "gate.fixed_depth=leap",
    "tracking.enabled=false",
    "studies={}",
)


def reproduce(root: Path, hash_seed: str, cores: set[int]) -> Path:
    project = Repository(root, "embedded", ALONE)
    done = subprocess.run(
        [sys.executable, PROJECT / "tools" / "run_stages.py", "--only", STAGES],
        cwd=root,
        env=project.environment()
        | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return root


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot bind a process to a core")
def test_two_fresh_projects_hold_the_same_results(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    one = reproduce(tmp_path / "one", "1", cores)
    other = reproduce(tmp_path / "other", "2", {min(cores)})
    command = [sys.executable, PROJECT / "tools" / "compare_runs.py", one, other]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    compared = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert compared.returncode == 0, compared.stdout
    assert "0 differ" in compared.stdout
    assert len(list((one / "models").glob("*/model.safetensors"))) == 1
    assert len(list((one / "evaluations").glob("*/**/*.json"))) == 4  # training, diagnosis, pairs, collection

    weights = other / "models" / "leap-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    compared = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert compared.returncode == 1
    assert compared.stdout.startswith("models/leap-1/model.safetensors: content ")
