"""A model that exists learns to exit: one training on a person's own sentences, without DVC.

The model is its own teacher and its own start. Everything that only the training needs lies in
`<output>.unfinished`, so that the same command goes on where it stopped; the output appears whole at the end.
"""

import hashlib
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leap.core.errors import UserError
from leap.core.files import must_be_new, read_json, whole_folder, write_with_checksum
from leap.core.project import Place
from leap.core.sample_sizes import NEIGHBOURS
from leap.core.settings import VariantSettings
from leap.core.settings.sources import LocalModel
from leap.core.unfinished import LOCK, held
from leap.models.device import resolve_device
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.models.packed_encoder import EncoderConfig
from leap.models.walk import Shape
from leap.train.objective.layer_map import needed_teacher_layers
from leap.train.teacher.teacher_cache import build_cache
from leap.train.train_student import is_trained, train_student, training_identity

LOG_EVERY = 50
# Among fewer documents a query keeps its nearest ten by chance.
FEWEST_DOCUMENTS = 10 * NEIGHBOURS
# The longest input that the settings take; a decoder's own may be above it.
LONGEST = 8192
# What lies in `<output>.unfinished`.
OWN = ("teacher", "tokens", "student", "training", "states", LOCK)
# What was found best for all-MiniLM-L6-v2 (docs/log/2026-11-28.md); the variant `elastic` of the profiles.
LOSS: dict[str, Any] = {
    "kind": "leap",
    "alpha": 0.0,
    "beta": 0.2,
    "beta_student": 0.7,
    "gamma": 0.0,
    "delta": 0.3,
    "epsilon": 0.0,
    "tau": 0.98,
    "tau_c": 0.15,
    "margin": "softplus",
    "slope": 10.0,
    "layer_weights": {"early": 1.0, "late": 1.0, "final": 1.0, "late_from": 1},
    "late_from": 1,
    "redundancy_clip": 0.3,
    "ramp": (0.1, 0.6),
    "layer_map": "uniform",
    "heads": True,
    "exit_contrast": 1.0,
    "exit_contrast_with": "final",
    "anchor": 1.5,
}
# For a wider model: the weights of all-mpnet-base-v2's best training (docs/log/2026-11-29.md).
WIDE: dict[str, Any] = {"beta": 0.5, "exit_contrast": 4.0}
WIDE_EARLY = 2.0
# Of all-MiniLM-L6-v2. The loss of all-mpnet-base-v2, twice as wide, tripled halfway at 1e-3; 7e-4 did best.
RATE, WIDTH = 2e-3, 384
# What was found best for thousands of sentences (docs/log/2026-11-29.md), as the embedded profile's `elastic`: the
# last third of the layers is trained, two at least, and their exits, where queries can then leave, weigh most.
LITTLE_TEXT: dict[str, Any] = {"beta": 5.0, "delta": 3.0, "tau_c": 0.3, "exit_contrast": 24.0}


def sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Training:
    """Length and rate of a training: a GPU takes larger batches, and with them a higher rate."""

    epochs: int
    batch_size: int
    max_length: int
    # By the model's width where none is given.
    learning_rate: float | None = None
    # On little text exits are mostly their start; on a million sentences, for which the cache of all layers that
    # ridge regression reads would take gigabytes, nothing is left of it.
    heads_start: Literal["zero", "ridge"] = "ridge"
    # For thousands of sentences; a million teach every layer to exit.
    little_text: bool = False

    @classmethod
    def of(cls, device: str) -> "Training":
        """Choose by device: on a CPU the last layers in small batches, on a GPU all layers in large ones."""
        if resolve_device(device).type == "cpu":
            return cls(epochs=5, batch_size=64, max_length=128, little_text=True)
        return cls(epochs=10, batch_size=1024, max_length=256, heads_start="zero")


def rate_of(width: int) -> float:
    """Choose the learning rate of a model's retrofit: the wider, the smaller, above all-MiniLM-L6-v2's width."""
    return RATE * math.pow(min(1.0, WIDTH / width), 1.5)


def hold_out(sentences: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Split sentences into the training text, held-out queries and held-out documents, each text in one of them.

    Raises:
        UserError: there are too few.
    """
    unique = sorted(set(sentences), key=sha256_of_text)  # an order that depends on no other sentence
    queries, documents = min(200, len(unique) // 20), min(2000, len(unique) // 10)
    if documents < FEWEST_DOCUMENTS:
        raise UserError(
            f"{len(unique)} different sentences are too few: a tenth of them is held out to measure what is kept, "
            f"{FEWEST_DOCUMENTS} at least: give {10 * FEWEST_DOCUMENTS} or more, better thousands"
        )
    held = queries + documents
    return unique[held:], unique[:queries], unique[queries:held]


def retrofit(
    model: Path,
    sentences: Sequence[str],
    output: Path,
    training: Training,
    *,
    query_layer: int | None = None,
    device: str = "auto",
    seed: int = 1,
    finish: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Train a model to exit and write it as a folder of its own.

    Plain sentence-transformers loads the folder at full depth. leap.json has `encode` and documents leave at full
    depth and queries at `query_layer`.

    Args:
        model: a folder that `find_model` has checked, of any architecture that exits; one that the packed encoder
            computes trains several times faster.
        sentences: the training text, like what the model will encode.
        output: the new folder; must not exist.
        query_layer: from 1 to L; queries at full depth too if None, until a layer is shown to keep enough.
        finish: called with the new folder before it takes its place; stopped in it, the next call begins there.

    Returns:
        What training.json says.

    Raises:
        UserError: the output exists, another process trains it, or the model or the text cannot be used.
        KeyboardInterrupt: SIGINT or SIGTERM came; the state is saved.
    """
    must_be_new(output)
    root = output.absolute().with_name(f"{output.name}.unfinished")
    _check_own(root)
    if training.learning_rate is not None and not 0 < training.learning_rate < math.inf:
        raise UserError(
            f"learning rate {training.learning_rate} must be above 0 and finite: change --learning-rate"
        )
    opened = open_model(model)
    shape, longest = opened.encoder.config, opened.tokenizer.max_length
    chosen = query_layer or shape.layers
    if not 1 <= chosen <= shape.layers:
        raise UserError(f"query layer {chosen} is not a layer of {model}: 1 to {shape.layers}")
    if len(sentences) < training.batch_size:
        raise UserError(
            f"{len(sentences)} sentences are fewer than one batch of {training.batch_size}: give more, and "
            "thousands, or name a smaller --batch-size"
        )
    source = LocalModel(kind="local", path=str(model))
    place = Place(root / "student", root / "training", root / "states")
    length = min(training.max_length, longest)
    variant = _settings(shape, longest, training, length, device)
    layers = needed_teacher_layers(shape.layers, shape.layers, variant.loss)
    with held(root):
        build_cache(root / "teacher", locate(source), sentences, layers, length, device)
        if is_trained(place, training_identity(variant, seed, root / "teacher")):
            result: dict[str, Any] = read_json(place.training / "training.json", "leap retrofit")
        else:
            result = train_student(variant, source, seed, sentences, root / "teacher", place, lambda *_: None)
        _write(output, place.student, shape.layers, chosen, finish)
        shutil.rmtree(root)
    return result


def _write(output: Path, student: Path, depth: int, query_layer: int, finish: Callable[[Path], None]) -> None:
    with whole_folder(output) as temporary:
        shutil.copytree(student, temporary, dirs_exist_ok=True)
        # A rule that never leaves early: `encode` gives what the model gave, until a person says otherwise.
        full = {"threshold": 1.0, "min_layer": depth, "patience": 1}
        rules = {"exit": full, "query": {"layer": query_layer}, "document": "full"}
        write_with_checksum(temporary / "leap.json", rules)
        finish(temporary)


def _check_own(root: Path) -> None:
    """Refuse a place for the unfinished training that holds anything else, for it is removed at the end."""
    if root.is_dir():
        others = sorted(
            entry.name for entry in root.iterdir() if not (entry.name in OWN or entry.match(".*.part"))
        )
    else:
        others = [root.name] if root.exists() else []
    if others:
        raise UserError(
            f"{root}, where the unfinished training goes, holds what is not of a training "
            f"({', '.join(others[:3])}): move it away, or name another --output"
        )


def _settings(shape: Shape, longest: int, training: Training, length: int, device: str) -> VariantSettings:
    on_cpu = resolve_device(device).type == "cpu"
    # Of another architecture than BERT's nothing but depth and width is compared with the settings.
    heads, intermediate = (
        (shape.heads, shape.intermediate) if isinstance(shape, EncoderConfig) else (1, shape.width)
    )
    loss, frozen = LOSS | {"heads_start": training.heads_start}, 0
    if training.little_text:
        stay = max(0, shape.layers - max(2, shape.layers // 3))
        loss |= LITTLE_TEXT | {"layer_weights": LOSS["layer_weights"] | {"early": 0.1, "late_from": stay + 1}}
        frozen = stay if isinstance(shape, EncoderConfig) else 0  # another library's layers are all trained
    elif shape.width > WIDTH:
        halves = {"early": WIDE_EARLY, "late_from": max(1, shape.layers // 2)}
        loss |= WIDE | {"layer_weights": LOSS["layer_weights"] | halves}
    return VariantSettings.model_validate(
        {
            "name": "retrofit",
            "description": "a model that learns to exit",
            "checkpoint": None,
            "student": {
                "layers": shape.layers,
                "width": shape.width,
                "heads": heads,
                "intermediate": intermediate,
                "max_length": min(longest, LONGEST),
                "start": {"kind": "teacher", "frozen": frozen},
            },
            "loss": loss,
            "train": {
                "epochs": training.epochs,
                "batch_size": training.batch_size,
                "learning_rate": training.learning_rate or rate_of(shape.width),
                "warmup": 0.1,
                "weight_decay": 0.01,
                "max_grad_norm": 1.0,
                "max_length": length,
                "precision": "fp32" if on_cpu else "bf16",
                "device": device,
                "teacher": "cached",
                "processes": 1,
                "compile": True,
                "log_every": LOG_EVERY,
                "checkpoint_every": 200,
                "keep_checkpoints": 2,
            },
            "exit": {"threshold": 1.0, "min_layer": shape.layers, "patience": 1},
        }
    )
