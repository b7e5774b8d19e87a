"""Where everything of a project lies: the one place that spells its paths.

All paths are relative to `root`, which is the working folder unless a caller says otherwise: DVC runs every
stage in the project's root, or in a temporary copy of it (`dvc exp run --temp`).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """The folders of one training outside the pipeline; a `Checkpoint` has the same."""

    student: Path
    training: Path
    unfinished: Path


@dataclass(frozen=True)
class Checkpoint:
    """The files of one variant and seed."""

    root: Path
    variant: str
    seed: int

    @property
    def name(self) -> str:
        """`<variant>-<seed>`, the name of its folders, its run and its registered model."""
        return f"{self.variant}-{self.seed}"

    @property
    def student(self) -> Path:
        """The trained weights and the tokenizer, without an exit rule: what `train` writes."""
        return self.root / "students" / self.name

    @property
    def model(self) -> Path:
        """The model that is judged and served: the student with rule, heads and calibration."""
        return self.root / "models" / self.name

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations" / self.name

    @property
    def training(self) -> Path:
        return self.evaluations / "training"

    @property
    def unfinished(self) -> Path:
        return self.root / "data" / "unfinished" / self.name

    @property
    def verdict(self) -> Path:
        return self.root / "verdicts" / f"{self.name}.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics" / f"{self.name}.json"

    def evidence(self, kind: str, set_name: str | None = None) -> Path:
        """Return the evidence file of a kind (diagnose, latency, or sts and retrieval with a set's name)."""
        return self.evaluations / (f"{kind}/{set_name}.json" if set_name else f"{kind}.json")


def user_cache() -> Path:
    """Return a folder for what can be computed again: $LEAP_CACHE, else where the system keeps such."""
    named = os.environ.get("LEAP_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leap"


@dataclass(frozen=True)
class Project:
    """The files of a project that belong to no single checkpoint."""

    root: Path = Path()

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def sentences(self) -> Path:
        return self.data / "sentences.parquet"

    @property
    def held_out(self) -> Path:
        """The sentences that calibrate exits and train nothing."""
        return self.data / "held_out.parquet"

    @property
    def similarity(self) -> Path:
        return self.data / "similarity"

    @property
    def retrieval(self) -> Path:
        return self.data / "retrieval"

    @property
    def teacher(self) -> Path:
        return self.data / "teacher"

    @property
    def tokens(self) -> Path:
        """A cache of the training text as tokens, by content; may be deleted at any time."""
        return self.data / "tokens"

    @property
    def vectors(self) -> Path:
        """A cache of encoded vectors, by content; may be deleted at any time."""
        return self.data / "vectors"

    @property
    def verdicts(self) -> Path:
        return self.root / "verdicts"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def outputs(self) -> list[Path]:
        """The folders and files that the pipeline writes, of which none may be an input."""
        names = ("students", "models", "evaluations", "verdicts", "metrics", "reports", "mlruns")
        caches = [self.teacher, self.tokens, self.vectors, self.data / "unfinished"]
        texts = [self.sentences, self.held_out, self.similarity, self.retrieval]
        return [*texts, *caches, *(self.root / name for name in names)]

    def pairs(self, set_name: str) -> Path:
        return self.similarity / f"{set_name}.parquet"

    def collection(self, set_name: str) -> Path:
        return self.retrieval / set_name

    def checkpoint(self, variant: str, seed: int) -> Checkpoint:
        return Checkpoint(self.root, variant, seed)


def stage_that_writes(target: Path) -> str | None:
    """Return the DVC stage that has `target`, or a folder around it, among its outputs; None where no stage has.

    dvc.lock of the nearest project above the target says so; its lines are read as text, for a YAML parser
    takes seconds over a large one.
    """
    path = target.absolute()
    root = next((place for place in path.parents if (place / "dvc.yaml").is_file()), None)
    if root is None or not (root / "dvc.lock").is_file():
        return None
    written: dict[Path, str] = {}
    stage = section = ""
    for line in (root / "dvc.lock").read_text(encoding="utf-8", errors="replace").splitlines():
        if match := re.fullmatch(r"  (\S.*):", line):
            stage = match[1].strip("'\"")
        elif match := re.fullmatch(r"    (\w+):.*", line):
            section = match[1]
        elif section == "outs" and (match := re.fullmatch(r"    - path: (.+)", line)):
            written.setdefault(root / match[1].strip("'\""), stage)
    return next((written[place] for place in (path, *path.parents) if place in written), None)
