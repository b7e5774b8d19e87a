"""The stages after training, and the gate, on encoders that transformers computes: a decoder and a modern BERT."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_evidence import EMBEDDED
from ruamel.yaml import YAML
from tiny_models import WORDS, write_modules
from zoo import LAYERS, write_model

from benchmark_latency import benchmark_latency
from calibrate import calibrate
from diagnose import diagnose
from evaluate_retrieval import evaluate_retrieval
from evaluate_sts import evaluate_sts
from gate import gate
from leap.core.project import Project
from leap.core.settings import parse_settings
from leap.core.stage import Run
from leap.data.pairs import write_pairs
from leap.extract.collections import write_collection
from train import train

QUERIES, DOCUMENTS = 12, 24


def texts(number: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(3, 9))) for _ in range(number)]


def write_inputs(folder: Path) -> None:
    lines = ["sentence1,sentence2,score"]
    lines += [
        f"{one},{two},{row % 6}" for row, (one, two) in enumerate(zip(texts(40, 1), texts(40, 2), strict=True))
    ]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    own = folder / "own"
    (own / "qrels").mkdir(parents=True)
    for name, number, seed in (("queries", QUERIES, 3), ("corpus", DOCUMENTS, 4)):
        rows = [
            json.dumps({"_id": f"{name[0]}{row}", "text": text}) for row, text in enumerate(texts(number, seed))
        ]
        (own / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    judged = [f"q{row}\tc{2 * row}\t1" for row in range(QUERIES)]
    (own / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")


@pytest.mark.parametrize("architecture", ["qwen3", "modernbert"])
def test_a_model_that_transformers_computes_is_judged_like_any_other(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "own_model", architecture, side="left" if architecture == "qwen3" else "right")
    write_modules(tmp_path / "own_model", "mean_tokens", normalize=True)
    write_inputs(tmp_path)
    model: dict[str, Any] = {"kind": "local", "path": str(tmp_path / "own_model")}
    content = YAML(typ="safe").load(EMBEDDED.read_text())
    own = {"description": "as it is", "checkpoint": model, "exit": {"min_layer": 2, "query_layer": 3}}
    content |= {"teacher": model, "variants": {"own": own}, "studies": {}}
    content["similarity"] = {"software": {"kind": "local", "path": "pairs.csv"}}
    content["retrieval"] = {"own": {"kind": "local", "path": "own"}}
    content["latency"] |= {"iterations": 5, "batch_sizes": [1], "warmup": 1}
    content["gate"] |= {"baseline": None, "fixed_depth": None}
    settings = parse_settings(content, "test")
    run = Run(settings, Project(), "own", 1)
    for path, seed in ((run.project.sentences, 5), (run.project.held_out, 6)):
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"sentence": texts(240, seed)}), path)
    write_pairs("software", settings.similarity["software"], tmp_path, run.project.pairs("software"))
    write_collection("own", settings.retrieval["own"], tmp_path, 1, run.project.collection("own"))

    train(run)
    calibrate(run)
    diagnose(run)
    evaluate_sts(Run(settings, run.project, "own", 1, "software"))
    evaluate_retrieval(Run(settings, run.project, "own", 1, "own"))
    benchmark_latency(run)
    judged = gate(run)

    verdict = json.loads(run.checkpoint.verdict.read_text())
    assert verdict["passed"] is judged["passed"]
    values = {check["metric"]: check["value"] for check in verdict["checks"]}
    figures = json.loads(run.checkpoint.evidence("retrieval", "own").read_text())
    assert values["retrieval.own.query_drop"] == figures["query_drop"]
    assert [row["layer"] for row in figures["by_query_layer"]] == list(range(1, LAYERS + 1))
    assert (
        values["exit.similarity"]
        == json.loads(run.checkpoint.evidence("diagnose").read_text())["exit"]["similarity"]
    )
