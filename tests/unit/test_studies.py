"""A study from its settings to MLflow: tiny trainings, the figures that it asks for, and a nested run each."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_evidence import made_settings
from made_store import enter_project
from tiny_settings import ADAPTIVE, TINY

from leap.core.files import write_with_checksum
from leap.core.settings import Settings
from leap.core.settings.sources import LocalModel
from leap.data.sentence_file import read_sentences
from leap.registry.project_runs import log_study_now
from leap.studies.run_study import run_study
from leap.tracking import Tracking
from leap.train.teacher.prepare import prepare_teacher

LOSSES: dict[str, dict[str, Any]] = {
    "student_only": {"beta_teacher": 0.0},
    "exit_alone": {"epsilon": 0.0, "gamma": 0.0},
    "late_alone": {"beta": 0.0, "gamma": 0.0},
    "uniform": {"layer_weights": {"early": 1.0, "late": 1.0, "final": 1.0}},
    "matryoshka": {"matryoshka": [0.5]},
    "adaptive_layer": ADAPTIVE,
}


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a project whose text, pairs and teacher are tiny; its folder is the working folder."""
    project = enter_project(tmp_path / "project", monkeypatch)
    (project / "data/similarity").mkdir(parents=True)
    pd.DataFrame({"sentence": sentences, "source": "made"}).to_parquet("data/sentences.parquet")
    sides = {"sentence1": sentences[:30], "sentence2": sentences[30:], "score": [float(i % 6) for i in range(30)]}
    pd.DataFrame(sides).to_parquet("data/similarity/software.parquet")
    study = {
        "description": "the loss taken apart",
        "variants": {
            **{name: {"description": name, "loss": loss} for name, loss in LOSSES.items()},
            "gone": {"description": "a ready model", "checkpoint": {"kind": "local", "path": "nowhere"}},
        },
        "thresholds": [0.9],
        "widths": [0.5],
        "weights": ["fp16"],
        **{name: TINY[name] for name in ("student", "loss", "exit")},
        "train": {**TINY["train"], "epochs": 1},
    }
    made = made_settings(
        evaluation={"device": "cpu", "batch_size": 16},
        latency={"warmup": 0, "iterations": 5},
        studies={"parts": study},
    )
    return made.model_copy(update={"teacher": LocalModel(kind="local", path=str(tiny_folder))})


def test_every_loss_is_trained_measured_and_a_nested_run(settings: Settings) -> None:
    variant = settings.study_variant("parts", "uniform")
    prepare_teacher(
        Path("data/teacher"),
        settings.teacher,
        read_sentences(Path("data/sentences.parquet")),
        [variant],
        variant.train,
    )
    content = run_study(settings, "parts")
    assert not Path("studies/work/teachers").exists()  # the pipeline's teacher serves
    (why,) = content["left_out"].values()  # and the others are measured
    assert "model folder nowhere does not exist" in why
    rows = {name: variant["seeds"]["1"] for name, variant in content["variants"].items()}
    assert set(rows) == set(LOSSES)
    assert len({row["checkpoint"] for row in rows.values()}) == len(LOSSES)  # each loss trains another student
    for row in rows.values():
        assert row["training"]["seconds"] > 0
        weights = {(item["weights"], item["path"]): item for item in row["weights"]}
        assert weights["fp32", "exit"]["moved"] == 0.0
        assert 0.0 <= weights["fp16", "exit"]["moved"] <= 0.1
        assert weights["fp16", "full"]["spearman"] == pytest.approx(row["spearman_full"], abs=0.02)
    path = Path("studies/parts.json")
    write_with_checksum(path, content)
    log_study_now(settings, path)
    tracking = Tracking.open(settings)
    (parent,) = tracking.find({"leap.study": "parts"})
    children = tracking.find({"mlflow.parentRunId": parent.info.run_id})
    assert {run.data.tags["leap.variant"] for run in children} == set(LOSSES)
    (own,) = (run for run in children if run.data.tags["leap.variant"] == "student_only")
    assert own.data.params == {"loss.beta_teacher": "0.0"}
    assert own.data.metrics["spearman_exit"] == rows["student_only"]["spearman_exit"]
    assert own.data.metrics["weights/fp16/exit/moved"] == rows["student_only"]["weights"][3]["moved"]
