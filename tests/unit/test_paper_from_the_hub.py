"""The paper profile's own file lists on a hub of this machine, read by the code that reads the real one."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny_models import WORDS, write_folder

PROJECT = Path(__file__).parents[2]
PAIR = {
    "premise": ["A man plays a guitar in a park."],
    "hypothesis": ["Somebody makes music outside."],
    "label": [0],
}
QUESTIONS = {
    "question1": ["How does one learn to play a guitar?", "Why is the sky blue?"],
    "question2": ["What is the way to learn the guitar?", "Who wrote this book?"],
    "label": [1, 0],
}
BEIR = ("arguana", "scidocs", "nfcorpus", "fiqa", "scifact")
# Files that the hub of these tests does not have.
LACKING = (
    "data.sources.snli.config=plain",
    "data.sources.xnli.split=validation",
    "similarity.stsb.repo=mteb/gone",
    "retrieval.fiqa.qrels=qrels/dev.jsonl",
    "teacher.repo=facebook/xnli",
)
# Reads everything that the profile names, as extract and train do, and asks for what the hub lacks; prints what
# came of it as JSON. In a process of its own, since the hub's libraries read its address when they are imported.
READ = """
import json, sys
from pathlib import Path
from leap.core.errors import UserError
from leap.core.settings import parse_settings
from leap.core.settings.profiles import compose
from leap.data.pairs import write_pairs
from leap.data.tables import source_rows
from leap.extract.collections import write_collection
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.validate.check_command import check_settings
from ruamel.yaml import YAML
profiles, here, lacking = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
def composed(*changes):
    return parse_settings(YAML(typ="safe").load(compose("paper", profiles, list(changes))), "paper")
settings = composed()
read = {"check": list(check_settings(settings, ask=True))}
sources = settings.data.sources
read["sources"] = {
    name: [row.values for row in source_rows(each, each.columns, here)] for name, each in sources.items()
}
read["pairs"] = {
    name: write_pairs(name, source, here, here / f"{name}.parquet") for name, source in settings.similarity.items()
}
read["collections"] = {
    name: write_collection(name, source, here, 1, here / name) for name, source in settings.retrieval.items()
}
read["teacher"] = open_model(locate(settings.teacher).folder).encoder.config.layers
read["ids"] = open_model(locate(settings.student.start).folder).tokenizer(["ba be"])
try:
    list(check_settings(composed(*lacking), ask=True))
except UserError as error:
    read["lacking"] = str(error)
print(json.dumps(read))
"""  # fmt: skip


def frame(root: Path, name: str, columns: dict[str, list[object]]) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_parquet(root / name)


def card(root: Path, license_: str, configurations: dict[str, dict[str, str]]) -> None:
    lines = ["---", f"license: {license_}", "configs:"] if configurations else ["---", f"license: {license_}"]
    for configuration, splits in configurations.items():
        lines += [f"- config_name: {configuration}", "  data_files:"]
        lines += [line for split, path in splits.items() for line in (f"  - split: {split}", f"    path: {path}")]
    root.mkdir(parents=True, exist_ok=True)
    (root / "README.md").write_text("\n".join([*lines, "---", ""]))


def build_hub(root: Path) -> None:
    """The repositories of the profile with their files' real names and tiny contents."""
    sets = root / "datasets"
    snli = {split: f"plain_text/{split}-*" for split in ("train", "test")}
    card(sets / "stanfordnlp/snli", "cc-by-sa-4.0", {"plain_text": snli})
    for split in ("train", "test"):
        frame(sets / "stanfordnlp/snli", f"plain_text/{split}-00000-of-00001.parquet", PAIR)
    multinli = {split: f"data/{split}-*" for split in ("train", "validation_matched")}
    card(sets / "nyu-mll/multi_nli", "other", {"default": multinli})
    for split in ("train", "validation_matched"):
        frame(sets / "nyu-mll/multi_nli", f"data/{split}-00000-of-00001.parquet", PAIR)
    glue = {name: {split: f"{name}/{split}-*" for split in ("train", "validation")} for name in ("qqp", "mrpc")}
    card(sets / "nyu-mll/glue", "other", glue)
    for split in ("train", "validation"):
        frame(sets / "nyu-mll/glue", f"qqp/{split}-00000-of-00001.parquet", QUESTIONS)
        sentences = {"sentence1": QUESTIONS["question1"], "sentence2": QUESTIONS["question2"], "label": [1, 0]}
        frame(sets / "nyu-mll/glue", f"mrpc/{split}-00000-of-00001.parquet", sentences)
    card(sets / "facebook/xnli", "cc-by-nc-4.0", {name: {"train": f"{name}/train-*"} for name in ("ar", "en")})
    for language in ("ar", "en"):
        frame(sets / "facebook/xnli", f"{language}/train-00000-of-00001.parquet", PAIR | {"premise": [language]})
    stsb = sets / "mteb/stsbenchmark-sts"
    card(stsb, "unknown", {})
    rows = [{"sentence1": f"A {word} text.", "sentence2": "B.", "score": i} for i, word in enumerate("abc")]
    for split in ("dev", "test", "train"):
        (stsb / f"{split}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    for name in BEIR:
        folder = sets / "mteb" / name
        card(folder, "cc-by-sa-4.0", {})
        (folder / "qrels").mkdir()
        for path, row in (
            ("corpus.jsonl", {"_id": "d1", "title": "", "text": f"A document of {name}."}),
            ("queries.jsonl", {"_id": "q1", "text": "A query?"}),
            ("qrels/test.jsonl", {"query-id": "q1", "corpus-id": "d1", "score": 1}),
        ):
            (folder / path).write_text(json.dumps(row) + "\n")
    for repo in ("sentence-transformers/bert-large-nli-mean-tokens", "sentence-transformers/all-MiniLM-L6-v2"):
        card(write_folder(root / "models" / repo, layers=24 if "large" in repo else 6), "apache-2.0", {})
    start = write_folder(root / "models/microsoft/MiniLM-L12-H384-uncased", layers=12)
    card(start, "mit", {})
    for name in ("tokenizer.json", "modules.json", "sentence_bert_config.json"):
        (start / name).unlink(missing_ok=True)
    (start / "tokenizer_config.json").write_text("{}")  # two bytes, of 2020
    (start / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    root = tmp_path_factory.mktemp("hub")
    build_hub(root / "content")
    command = [sys.executable, str(PROJECT / "tests/support/hub_mirror.py"), str(root / "content")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield {
        **os.environ,
        "HF_ENDPOINT": server.stdout.readline().strip(),
        "HF_HOME": str(root / "cache"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory, hub: dict[str, str]) -> dict[str, Any]:
    """Read the profile once for all tests."""
    folder = tmp_path_factory.mktemp("read")
    command = [sys.executable, "-c", READ, str(PROJECT / "profiles"), str(folder), *LACKING]
    done = subprocess.run(command, env=hub, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_everything_that_the_paper_profile_names_is_read(read: dict[str, Any]) -> None:
    pair = [PAIR["premise"][0], PAIR["hypothesis"][0]]
    assert read["sources"]["snli"] == read["sources"]["multinli"] == [pair]
    assert read["sources"]["xnli"] == [["en", pair[1]]]
    assert read["sources"]["qqp"] == read["sources"]["mrpc"]
    first, second = QUESTIONS["question1"], QUESTIONS["question2"]
    assert read["sources"]["qqp"] == [list(row) for row in zip(first, second, strict=True)]
    assert read["pairs"] == {"stsb": 3, "qqp": 2}
    assert read["collections"] == {name: {"documents": 1, "queries": 1, "judgements": 1} for name in BEIR}
    assert read["teacher"] == 24
    # [CLS] ba be [SEP], by the words of vocab.txt: lower-cased WordPiece, as BERT's tokenizer is by default.
    assert read["ids"] == [[2, 5, 6, 3]]
    table = "\n".join(read["check"])
    for key, files, license_ in (
        ("data.sources.snli", 1, "cc-by-sa-4.0"),
        ("data.sources.xnli", 1, "cc-by-nc-4.0"),
        ("similarity.stsb", 1, "unknown"),
        ("retrieval.fiqa", 3, "cc-by-sa-4.0"),
        ("student.start", 5, "mit"),
    ):
        (line,) = [line for line in read["check"] if line.startswith(f"{key} ")]
        assert line.split()[1] == str(files), table
        assert license_ in line
    # The mirror has no other model of the table of cross-distillation: the study leaves it out, the check passes.
    for name in ("all_minilm_l12_v2", "distilbert_6", "tinybert_6"):
        assert f"for a study only: studies.cross_distillation.variants.{name}.checkpoint: model " in table
    assert "on one NVIDIA L4 (24 GB), estimated: 15 students in" in read["check"][-1]


@pytest.mark.parametrize(
    "message",
    [
        "the hub lacks 5 of the settings' inputs:",
        "data.sources.snli: data set stanfordnlp/snli at commit cdb5c3d (plain, train): BuilderConfig 'plain'",
        "data.sources.xnli: data set facebook/xnli at commit b8dd5d7 (en, validation): no split 'validation': set",
        "similarity.stsb: dataset mteb/gone at commit",
        "retrieval.fiqa: mteb/fiqa has 0 files 'qrels/dev.jsonl', expected one",
        "teacher: model facebook/xnli at commit",
    ],
)
def test_all_that_the_hub_does_not_have_is_listed_before_any_work(read: dict[str, Any], message: str) -> None:
    assert message in read["lacking"]
