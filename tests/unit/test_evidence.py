import hashlib
import json
from pathlib import Path

import pytest
from made_evidence import made_settings, write_checkpoint, write_evidence

from leap.core.errors import UserError
from leap.core.files import write_with_checksum
from leap.evidence.evidence_file import HEAD, data_hashes, head, model_hash, read_evidence


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_head_names_checkpoint_rule_and_data(project: Path) -> None:
    settings = made_settings()
    write_checkpoint(Path("models/leap-1"), b"weights")
    Path("pairs.csv").write_text("x")
    opening = head("sts", settings, "leap", 1, Path("models/leap-1"), [Path("pairs.csv")], "cpu")
    assert (*opening, "scores", "checksum") == HEAD
    assert opening["checkpoint"] == hashlib.sha256(b"weights").hexdigest()
    assert opening["exit_rule"] == {"threshold": 0.95, "min_layer": 6, "patience": 1}
    assert opening["data"] == {"pairs.csv": hashlib.sha256(b"x").hexdigest()}
    json.dumps(opening, allow_nan=False)


def test_the_head_has_the_variants_own_exit_rule(project: Path) -> None:
    variants = {"own": {"description": "d", "exit": {"threshold": 0.9, "min_layer": 4}}}
    settings = made_settings(variants=variants)
    write_checkpoint(Path("models/own-1"), b"w")
    opening = head("latency", settings, "own", 1, Path("models/own-1"), [], "cpu")
    assert opening["exit_rule"] == {"threshold": 0.9, "min_layer": 4, "patience": 1}


def test_a_folder_of_data_is_all_its_files_and_no_path_of_the_machine(project: Path) -> None:
    folder = Path("data/retrieval/x")
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("c")
    (folder / "qrels" / "test.tsv").write_text("q")
    names = ["data/retrieval/x/corpus.jsonl", "data/retrieval/x/qrels/test.tsv"]
    assert list(data_hashes([folder])) == names
    assert list(data_hashes([folder.absolute()])) == names


def test_missing_data_and_weights_are_named(project: Path) -> None:
    with pytest.raises(UserError, match=r"absent.parquet is missing"):
        data_hashes([Path("absent.parquet")])
    with pytest.raises(UserError, match=r"models/leap-1/model.safetensors is missing"):
        head("sts", made_settings(), "leap", 1, Path("models/leap-1"), [], "cpu")


def test_only_the_sets_of_the_settings_are_collected(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    stray = Path("evaluations/leap-1/sts/left_over.json")
    stray.write_text("{}")
    evidence = read_evidence("leap", 1, settings)
    assert list(evidence.sts) == ["software"]
    assert list(evidence.retrieval) == ["docstrings", "second"]
    assert evidence.diagnose is not None
    assert evidence.diagnose["exit"]["similarity"] == 0.965
    assert evidence.latency is not None
    assert evidence.checkpoint == hashlib.sha256(b"leap-1").hexdigest()


def test_a_missing_file_is_named(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    Path("evaluations/leap-1/retrieval/second.json").unlink()
    with pytest.raises(UserError, match=r"evaluations/leap-1/retrieval/second.json is missing"):
        read_evidence("leap", 1, settings)
    assert list(read_evidence("leap", 1, settings, complete=False).retrieval) == ["docstrings"]


def test_evidence_of_another_checkpoint_is_refused_with_its_file(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    write_checkpoint(Path("models/leap-1"), b"trained again")
    for complete in (True, False):
        with pytest.raises(UserError, match=r"leap-1/diagnose.json was measured on model"):
            read_evidence("leap", 1, settings, complete=complete)


@pytest.mark.parametrize("file", ["leap.json", "tokenizer.json", "predictors.safetensors", "prompts/query.txt"])
def test_evidence_is_of_all_that_makes_the_vectors(project: Path, file: str) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    path = Path("models/leap-1") / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("another")
    with pytest.raises(UserError, match=r"leap-1/diagnose.json was measured on model"):
        read_evidence("leap", 1, settings)
    path.unlink()
    Path("models/leap-1/README.md").write_text("a card changes no vector")
    assert read_evidence("leap", 1, settings).model == model_hash(Path("models/leap-1"))


def test_files_that_disagree_with_each_other_are_refused_even_without_the_model(project: Path) -> None:
    settings = made_settings()
    write_evidence(project, settings, "leap")
    path = Path("evaluations/leap-1/latency.json")
    write_with_checksum(path, {**json.loads(path.read_text()), "model": "0" * 64})
    Path("models/leap-1/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"latency.json was measured on model 000000000000"):
        read_evidence("leap", 1, settings, complete=False)


def test_evidence_with_another_exit_rule_is_refused(project: Path) -> None:
    write_evidence(project, made_settings(), "leap")
    changed = made_settings(exit={"threshold": 0.97})
    with pytest.raises(UserError, match=r"diagnose.json was measured with exit settings .*0.95.*0.97"):
        read_evidence("leap", 1, changed)


def test_nothing_there_yet_is_an_empty_evidence(project: Path) -> None:
    evidence = read_evidence("leap", 1, made_settings(), complete=False)
    assert (evidence.model, evidence.diagnose, evidence.sts, evidence.latency) == (None, None, {}, None)
