"""Every file that the pipeline wrote and reads again, damaged at random: refused by name, or read right.

A damaged file of a cache may also be made again; what is read is then right too.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import survives
from made_evidence import made_settings, write_evidence
from tiny_models import WORDS, tiny_tokenizer, write_folder
from tokenizers import Tokenizer

from leap.core.checksums import FILE as SUMS
from leap.core.errors import UserError
from leap.core.files import sha256_of, write_with_checksum
from leap.core.settings.sources import LocalCollection, LocalPairs
from leap.data.beir import read_collection
from leap.data.cleaning import EvaluationTexts
from leap.data.pairs import read_pairs, write_pairs
from leap.data.sentence_file import SentenceFile, read_sentences
from leap.evaluate.encode import layer_vectors
from leap.evaluate.vector_cache import VectorCache
from leap.evidence.evidence_file import read_evidence
from leap.evidence.score_table import read_scores
from leap.exits import LeapEncoder
from leap.exits.calibrate.calibrate_folder import calibrate
from leap.exits.calibrate.risk import Demand
from leap.exits.similarity_predictors import Predictors
from leap.extract.collections import write_collection
from leap.extract.sample import write_sample
from leap.gate.judgement import judge_checkpoint
from leap.models.exit_heads import ExitHeads
from leap.models.locate import Located
from leap.models.packed_encoder import Encoder
from leap.models.tokenizer import SentenceTokenizer
from leap.train.student import save_student
from leap.train.teacher import build_cache, open_teacher
from leap.train.tokens import TokenizedText
from leap.train.training_state import TrainingState
from leap.validate.expectations import write_table

TEXTS = [f"{one} {two}" for one in WORDS[:10] for two in WORDS[:6]]


@pytest.fixture
def student(tmp_path: Path) -> Path:
    return saved(tmp_path / "student")


def saved(folder: Path, seed: int = 0) -> Path:
    """A folder as training leaves it."""
    plain = write_folder(folder.with_name(f"{folder.name}-plain"), seed=seed)
    folder.mkdir()
    save_student(Encoder.load(plain), folder, plain, 32)
    write_with_checksum(folder / "leap.json", {"exit": {"threshold": 0.885, "min_layer": 2, "patience": 1}})
    return folder


def encoded(folder: Path, **options: Any) -> list[Any]:
    vectors, layers = LeapEncoder(folder, "cpu").encode(TEXTS[:8], return_exit_layers=True, **options)
    return [vectors.tolist(), layers.tolist()]


def test_a_model_folder(student: Path) -> None:
    for path in sorted(file for file in student.rglob("*") if file.is_file()):
        # Damage of SHA256SUMS itself may read as damage of the file that the line names.
        named = str(student) if path.name == SUMS else None
        assert survives(path, lambda: encoded(student), named) > 0


def test_a_model_folder_without_sums_is_refused_or_loads(student: Path) -> None:
    """Without hashes a changed figure looks like a right one; no damage may end in a traceback."""
    (student / SUMS).unlink()
    for path in sorted(file for file in student.rglob("*") if file.is_file()):
        survives(path, lambda: encoded(student), named=str(student), same=lambda *_: True)


def test_half_a_model_folder(student: Path, tmp_path: Path) -> None:
    for path in sorted(file for file in student.rglob("*") if file.is_file()):
        if path.name in ("leap.json", SUMS):
            continue
        part = tmp_path / "part"
        shutil.copytree(student, part)
        (part / path.relative_to(student)).unlink()
        with pytest.raises(UserError, match=path.name):
            LeapEncoder(part, "cpu")
        shutil.rmtree(part)


def test_files_of_another_model_of_the_same_shape(student: Path, tmp_path: Path) -> None:
    other = saved(tmp_path / "other", seed=1)
    tokenizer = tiny_tokenizer().to_str().replace('"ba":5', '"ba":6').replace('"be":6', '"be":5')
    (other / "tokenizer.json").write_text(tokenizer)
    for name in ("model.safetensors", "tokenizer.json"):
        mine = (student / name).read_bytes()
        assert mine != (other / name).read_bytes()
        shutil.copyfile(other / name, student / name)
        with pytest.raises(UserError, match=f"{name} has another sha256"):
            LeapEncoder(student, "cpu")
        (student / name).write_bytes(mine)


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_tokenizer_of_another_size(tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """A folder from elsewhere has no SHA256SUMS: ids that the model has not are refused, too few are said."""
    folder = write_folder(tmp_path / "plain")
    tokenizer = tiny_tokenizer()
    if change == "more":
        tokenizer.add_tokens(["zu"])
        tokenizer.save(str(folder / "tokenizer.json"))
        with pytest.raises(UserError, match=r"token 'zu' has id 65, its model 65 rows .* in tokenizer\.json"):
            LeapEncoder(folder, "cpu")
        return
    weights = Encoder.load(folder)
    weights.words = torch.nn.Embedding(400, 16)
    weights.config = type(weights.config)(**{**vars(weights.config), "vocabulary": 400})
    weights.save(folder)
    LeapEncoder(folder, "cpu")
    assert "token ids up to 64, the model next to it 400 embeddings" in caplog.text


def test_config_of_another_depth(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "plain")
    config = json.loads((folder / "config.json").read_text())
    for layers, message in ((4, "says 4 layers, model.safetensors has 5"), (6, "lacks 'encoder.layer.5")):
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        with pytest.raises(UserError, match=message):
            LeapEncoder(folder, "cpu")
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))
    with pytest.raises(UserError, match=r"config.json wants \[65, 8\]"):
        LeapEncoder(folder, "cpu")


def test_heads_predictors_and_calibration(student: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    Predictors(torch.randn(4, 16, generator=generator), torch.zeros(4)).save(student)
    ExitHeads(torch.randn(4, 16, 16, generator=generator)).save(student)
    texts = [f"{one} {two}" for one in WORDS for two in WORDS[:20]]
    calibrate(LeapEncoder(student, "cpu"), texts, Demand(0.5, 0.2, 0.8)).save(student)
    for name, options in (
        ("predictors.safetensors", {"strategy": "predictors"}),
        ("heads.safetensors", {"strategy": "fixed", "layer": 2}),
        ("calibration.json", {"strategy": "calibrated"}),
    ):
        assert survives(student / name, lambda options=options: encoded(student, **options)) > 0  # type: ignore[misc]


def test_the_teachers_cache(student: Path, tmp_path: Path) -> None:
    teacher, cache = Located(student, sha256_of(student / "model.safetensors")), tmp_path / "teacher"
    build_cache(cache, teacher, TEXTS, [2, 5], 32, "cpu")

    def read() -> list[Any]:
        opened = open_teacher(cache, TEXTS, teacher, torch.device("cpu"), "fp32")
        rows = np.arange(len(TEXTS))
        return opened.vectors(opened.inputs(rows, fixed=False)).tolist()  # type: ignore[no-any-return]

    def rebuilt() -> list[Any]:
        build_cache(cache, teacher, TEXTS, [2, 5], 32, "cpu")
        return read()

    for name in ("shard-00000.bin", "manifest.json"):
        assert survives(cache / name, read) > 0
        assert survives(cache / name, rebuilt, times=5) == 0  # what is damaged is computed again
    swapped = [TEXTS[1], TEXTS[0], *TEXTS[2:]]
    with pytest.raises(UserError, match=r"manifest.json: sentences is .* the cache belongs to another run"):
        open_teacher(cache, swapped, teacher, torch.device("cpu"), "fp32")
    words = tiny_tokenizer().to_str().replace('"ba":5', '"ba":6').replace('"be":6', '"be":5')
    (student / "tokenizer.json").write_text(words)
    with pytest.raises(UserError, match=r"manifest.json: tokenizer is .* the cache belongs to another run"):
        open_teacher(cache, TEXTS, teacher, torch.device("cpu"), "fp32")


def test_shards_of_another_teacher(student: Path, tmp_path: Path) -> None:
    caches = []
    for number in (0, 1):
        folder = student if number == 0 else saved(tmp_path / "other", seed=1)
        teacher = Located(folder, sha256_of(folder / "model.safetensors"))
        build_cache(tmp_path / f"cache-{number}", teacher, TEXTS, [5], 32, "cpu")
        caches.append((tmp_path / f"cache-{number}", teacher))
    (mine, teacher), (other, _) = caches
    for name, message in (
        ("shard-00000.bin", "shard-00000.bin is missing or does not match"),
        ("manifest.json", "manifest.json: teacher is"),
    ):
        kept = (mine / name).read_bytes()
        shutil.copyfile(other / name, mine / name)
        with pytest.raises(UserError, match=message):
            open_teacher(mine, TEXTS, teacher, torch.device("cpu"), "fp32")
        (mine / name).write_bytes(kept)


def test_an_unfinished_teachers_cache(student: Path, tmp_path: Path) -> None:
    """What a killed run left and what was damaged since: computed again, and the same in the end."""
    teacher, cache = Located(student, sha256_of(student / "model.safetensors")), tmp_path / "teacher"
    whole = build_cache(tmp_path / "right", teacher, TEXTS, [5], 32, "cpu")
    identity = {key: value for key, value in whole.items() if key not in ("shards", "checksum")}

    def unfinished() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        write_with_checksum(cache / "building.json", identity)
        shutil.copyfile(tmp_path / "right" / "shard-00000.bin", cache / "shard-00000.bin")
        write_with_checksum(cache / "shard-00000.json", whole["shards"][0])

    for name in ("building.json", "shard-00000.bin", "shard-00000.json"):

        def finish(name: str = name) -> tuple[dict[str, Any], bytes]:
            damage = (cache / name).read_bytes() if cache.exists() else None
            unfinished()
            if damage is not None:
                (cache / name).write_bytes(damage)
            made = build_cache(cache, teacher, TEXTS, [5], 32, "cpu")
            unfinished_again = made, (cache / "shard-00000.bin").read_bytes()
            unfinished()
            return unfinished_again

        unfinished()
        assert survives(cache / name, finish, times=5) == 0


def test_tokens_and_vectors_are_made_anew(student: Path, tmp_path: Path) -> None:
    tokenizer, model = SentenceTokenizer(student), LeapEncoder(student, "cpu")
    tokens, vectors = tmp_path / "tokens", VectorCache(tmp_path / "vectors", 10**9)

    def text() -> list[Any]:
        kept = TokenizedText.cached(tokens, TEXTS, tokenizer)
        return [kept.lengths.tolist(), kept._ids.tolist()]

    def layers() -> list[Any]:
        return layer_vectors(model, TEXTS, 8, vectors).tolist()  # type: ignore[no-any-return]

    for read, folder in ((text, tokens), (layers, vectors.folder)):
        read()
        (file,) = folder.iterdir()
        assert survives(file, read) == 0


def test_the_state_of_a_training(tmp_path: Path) -> None:
    """A damaged state is passed over for the one before it, never taken."""

    def made(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        module = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(module.parameters())
        module(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return module, optimizer

    state = TrainingState(tmp_path / "state", {"seed": 1})
    for step in (5, 10):
        state.save(*made(step), step, [{"step": step, "loss": 1.0}])

    def restored() -> tuple[int, list[Any], str]:
        module, optimizer = made(0)
        step, history = state.restore(module, optimizer)
        return step, history, str(module.state_dict()) + str(optimizer.state_dict())

    newest = restored()
    shutil.move(state.folder / "step-00000010.safetensors", tmp_path / "away")
    before = restored()
    shutil.move(tmp_path / "away", state.folder / "step-00000010.safetensors")
    assert (newest[0], before[0]) == (10, 5)
    path = state.folder / "step-00000010.safetensors"
    survives(path, restored, same=lambda found, right: found in (newest, before) and right == newest)


def test_a_state_of_another_model_is_not_gone_on_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    TrainingState(tmp_path / "state", {"seed": 1, "settings": "a"}).save(module, optimizer, 5, [])
    assert TrainingState(tmp_path / "state", {"seed": 1, "settings": "b"}).restore(module, optimizer) == (
        0,
        [],
    )
    assert "is of another run (settings changed): starting again" in caplog.text


def test_what_extract_wrote(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\nA cat.,A dog.,1\nOne.,Two.,4.5\n")
    write_pairs("p", LocalPairs(kind="local", path="pairs.csv"), tmp_path, tmp_path / "p.parquet")
    texts = [("web", f"This is the sentence number {number} of many.") for number in range(300)]
    options: dict[str, Any] = {"min_characters": 5, "max_characters": 90, "max_sentences": None}
    write_sample([texts], tmp_path / "sentences.parquet", seed=1, evaluation=EvaluationTexts(), **options)

    def pairs() -> list[Any]:
        result = read_pairs(tmp_path / "p.parquet")
        return [result.sentence1, result.sentence2, result.scores.tolist()]

    assert survives(tmp_path / "p.parquet", pairs, times=60) > 0
    path = tmp_path / "sentences.parquet"
    assert survives(path, lambda: read_sentences(path), times=60) > 0
    assert survives(path, lambda: list(SentenceFile(path)), times=60) > 0
    tokenizer = Tokenizer.from_file(str(write_folder(tmp_path / "model") / "tokenizer.json"))

    def table() -> list[tuple[str, str]]:
        target = tmp_path / "table.db"
        target.unlink(missing_ok=True)
        write_table(path, target, EvaluationTexts(), tokenizer, 32)
        with closing(sqlite3.connect(target)) as database:
            return database.execute("select sentence, source from sentences").fetchall()

    assert survives(path, table, times=60) > 0


def test_a_collection(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "qrels").mkdir(parents=True)
    (source / "corpus.jsonl").write_text('{"_id": "1", "title": "", "text": "one"}\n{"_id": "2", "text": "two"}\n')
    (source / "queries.jsonl").write_text('{"_id": "q", "text": "which?"}\n')
    (source / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    local = LocalCollection(kind="local", path="source")
    write_collection("c", local, tmp_path, 1, tmp_path / "c")
    for path in sorted(file for file in (tmp_path / "c").rglob("*") if file.is_file()):
        named = str(tmp_path / "c") if path.name == SUMS else None
        assert survives(path, lambda: read_collection(tmp_path / "c"), named) > 0
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match=f"{path.name} is missing"):
            read_collection(tmp_path / "c")
        path.write_bytes(kept)


def test_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings()
    for variant in ("leap", "baseline", "fixed_depth"):
        write_evidence(tmp_path, settings, variant)
    folder = Path("evaluations/leap-1")
    for path in sorted(folder.rglob("*.json")):
        assert survives(path, lambda: judge_checkpoint(settings, "leap", 1)[1], times=5) > 0
        # The report reads evidence without judging it.
        survives(path, lambda: read_evidence("leap", 1, settings, complete=False), times=10)
    for path in sorted(folder.rglob("*.parquet")):

        def table(path: Path = path) -> dict[str, list[Any]]:
            return {name: column.tolist() for name, column in read_scores(path).items()}

        assert survives(path, table) > 0
    other = Path("evaluations/baseline-1/sts/software.parquet")
    shutil.copyfile(other, folder / "sts" / "software.parquet")
    with pytest.raises(UserError, match=r"software.parquet is not the table that .*software.json"):
        read_scores(folder / "sts" / "software.parquet")


FORMS: dict[str, Callable[[Path], Any]] = {
    "t.csv": lambda path: path.write_text('text,name\n"one, two",a\nthree,b\n'),
    "t.tsv": lambda path: path.write_text("text\tname\none\ta\nthree\tb\n"),
    "t.jsonl": lambda path: path.write_text('{"text": "one", "name": "a"}\n{"text": "two", "name": "b"}\n'),
    "t.txt": lambda path: path.write_text("one\ntwo\n"),
}


@pytest.mark.parametrize("name", [*FORMS, "t.jsonl.gz", "t.parquet"])
def test_files_of_the_users_own(tmp_path: Path, name: str) -> None:
    """Nobody knows their hash: what is not well-formed is refused by name, nothing ends in a traceback."""
    import gzip

    import pandas as pd

    from leap.data.tables import file_rows

    path = tmp_path / name
    if name in FORMS:
        FORMS[name](path)
    elif name == "t.parquet":
        pd.DataFrame({"text": ["one", "two"], "name": ["a", "b"]}).to_parquet(path)
    else:
        path.write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    survives(path, lambda: list(file_rows(path, ["text"])), times=100, same=lambda *_: True)
