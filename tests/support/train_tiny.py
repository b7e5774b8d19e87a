"""Trains the tests' tiny variant as one of torchrun's processes: `train_tiny.py FOLDER TEACHER [CHANGES]`."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from tiny_settings import tiny_variant

from leap.core.project import Checkpoint
from leap.core.settings.sources import LocalModel
from leap.train.ranks import join_processes
from leap.train.train_student import train_student


def main(root: Path, teacher: str, changes: str = "{}") -> None:
    """Reads root/sentences.txt and root/cache; writes students and evaluations. Changes: JSON."""
    variant = tiny_variant(**json.loads(changes))
    sentences = (root / "sentences.txt").read_text().splitlines()
    source = LocalModel(kind="local", path=teacher)
    with join_processes(torch.device(variant.train.device)) as ranks:
        train_student(
            variant, source, 1, sentences, root / "cache", Checkpoint(root, "leap", 1),
            lambda *_: None, ranks,
        )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
