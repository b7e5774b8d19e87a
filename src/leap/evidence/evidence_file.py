"""Evidence: the JSON files that say what was measured, on which checkpoint, data and machine.

`head` opens every file and `write_evidence` adds its checksum; `read_evidence` collects the files of one
checkpoint and refuses what does not belong together. docs/architecture.md, "Evidence", lists the content.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import (
    CHANGED,
    has_wrong_checksum,
    hashes_of,
    read_json,
    sha256_of,
    sha256_of_json,
    write_with_checksum,
)
from leap.core.settings import Settings
from leap.core.source_code import PACKAGE
from leap.core.stage import Run
from leap.evidence.score_table import Column, write_scores

WEIGHTS = "model.safetensors"
# Files of a model folder that say something of the others and change no vector.
NOT_SERVED = ("README.md", "SHA256SUMS")
# What every evidence file has in addition to its figures.
HEAD = (
    *("kind", "variant", "seed", "checkpoint", "model", "exit_rule", "query_layer"),
    *("settings", "data", "code", "environment", "scores", "checksum"),
)
# The settings that the figures of each kind depend on, the set's own block aside. A test compares with dvc.yaml.
_ENCODING = tuple(f"evaluation.{key}" for key in ("batch_size", "device", "length_bins", "bootstrap", "seed"))
MEASURED_BY = {
    "diagnose": ("evaluation", "teacher"),
    "sts": (*_ENCODING, "teacher"),
    "retrieval": (*_ENCODING, "teacher"),
    "latency": ("latency", "evaluation.primary_set", "evaluation.seed", "evaluation.sweep", "teacher"),
}
# The packages of leap whose code decides what is measured.
MEASURING = ("leap.data.", "leap.evaluate.", "leap.exits.", "leap.models.")


@dataclass(frozen=True)
class Evidence:
    """All evidence of one checkpoint, each file's content as it was written."""

    variant: str
    seed: int
    # sha256 of model.safetensors, and of all that makes the vectors; null where nothing is there yet
    checkpoint: str | None
    model: str | None
    diagnose: dict[str, Any] | None
    sts: dict[str, dict[str, Any]]
    retrieval: dict[str, dict[str, Any]]
    latency: dict[str, Any] | None

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """The content of every file that there is, by its name as in `evidence_files`."""
        sets = {"sts": self.sts, "retrieval": self.retrieval}
        contents = {f"{kind}/{name}": content for kind, named in sets.items() for name, content in named.items()}
        single = {"diagnose": self.diagnose, "latency": self.latency}
        return dict(sorted({**contents, **{name: item for name, item in single.items() if item}}.items()))


def head(
    kind: str,
    settings: Settings,
    variant: str,
    seed: int,
    checkpoint_folder: Path,
    data_files: Iterable[Path],
    device: str,
    set_name: str | None = None,
) -> dict[str, Any]:
    """Return how every evidence file opens.

    Args:
        kind: "diagnose", "sts", "retrieval" or "latency".
        settings: the exit settings are the variant's.
        checkpoint_folder: holds model.safetensors.
        data_files: what was measured on; a folder stands for all files in it.
        set_name: the set of pairs or the collection that was measured, where there are several.

    Raises:
        UserError: the checkpoint or a data file is missing.
    """
    return {
        "kind": kind,
        "variant": variant,
        "seed": seed,
        "checkpoint": checkpoint_hash(checkpoint_folder),
        "model": model_hash(checkpoint_folder),
        "exit_rule": exit_rule(settings, variant),
        "query_layer": settings.variant(variant).exit.query_layer,
        "settings": measured_settings(kind, settings, set_name),
        "data": data_hashes(data_files),
        "code": loaded_code(),
        "environment": environment(device),
    }


def record(
    run: Run,
    kind: str,
    figures: dict[str, Any],
    data: Iterable[Path],
    device: str,
    table: dict[str, Column] | None = None,
) -> None:
    """Write one evidence file of the run's checkpoint, the table of its rows first.

    Args:
        run: names the checkpoint and, for sts and retrieval, the set.
        kind: "diagnose", "sts", "retrieval" or "latency".
        data: what it was measured on; a folder stands for all files in it.
        device: where the model ran.
        table: a value a row, by column; for what is compared row by row.
    """
    path = run.checkpoint.evidence(kind, run.set or None)
    opening = head(
        kind, *(run.settings, run.variant, run.seed, run.checkpoint.model, data, device, run.set or None)
    )
    if table is not None:
        write_scores(path.with_suffix(".parquet"), table)
    write_evidence(path, {**opening, **figures})


def write_evidence(path: Path, content: dict[str, Any]) -> None:
    """Write an evidence file, last of all its `checksum`.

    `scores` is the sha256 of the table next to it, which is written first.
    """
    table = path.with_suffix(".parquet")
    scores = {"scores": sha256_of(table)} if table.is_file() else {}
    write_with_checksum(path, {**content, **scores})


def measured_settings(kind: str, settings: Settings, set_name: str | None) -> dict[str, dict[str, Any]]:
    """Return the settings that a measurement depends on, by block: dvc.yaml's params of its stage."""
    chosen: dict[str, dict[str, Any]] = {}
    for name in MEASURED_BY[kind]:
        block, _, key = name.partition(".")
        content = getattr(settings, block).model_dump(mode="json")
        chosen.setdefault(block, {}).update({key: content[key]} if key else content)
    if set_name is not None:
        block = {"sts": "similarity", "retrieval": "retrieval"}[kind]
        chosen[f"{block}.{set_name}"] = getattr(settings, block)[set_name].model_dump(mode="json")
    return chosen


def loaded_code() -> dict[str, str]:
    """Return the sha256 of every module of this package that this process measures with, by its path in it."""
    files = [
        Path(module.__file__)
        for name, module in list(sys.modules.items())
        if name.startswith(MEASURING) and module.__file__ is not None
    ]
    return {file.relative_to(PACKAGE).as_posix(): sha256_of(file) for file in sorted(files)}


def exit_rule(settings: Settings, variant: str) -> dict[str, Any]:
    return settings.variant(variant).exit.rule()


def checkpoint_hash(folder: Path) -> str:
    """Return what identifies a checkpoint, the sha256 of its weights; UserError if there are none."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{weights} is missing: `dvc repro` trains it")
    return sha256_of(weights)


def model_hash(folder: Path) -> str:
    """Return what identifies a model: the sha256 of all files that make its vectors, whatever their names.

    Weights, configuration, tokenizer, pooling, prompts, exit rule, heads, predictors and calibration: two folders
    with the same hash serve the same vectors by the same code.
    """
    return sha256_of_json(hashes_of(folder, NOT_SERVED))


def data_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of each file by its path in the project; a folder stands for all files in it.

    Raises:
        UserError: a path does not exist.
    """
    hashes: dict[str, str] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} is missing: `dvc repro` extracts it")
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        hashes |= {_project_name(file): sha256_of(file) for file in files}
    return hashes


def evidence_files(variant: str, seed: int, settings: Settings, root: Path) -> dict[str, Path]:
    """Name the files of evidence of one checkpoint, only the sets named in the settings: {"sts/x": path}."""
    names = ["diagnose", *(f"sts/{name}" for name in settings.similarity)]
    names += [*(f"retrieval/{name}" for name in settings.retrieval), "latency"]
    return {name: root / f"{variant}-{seed}" / f"{name}.json" for name in names}


def read_evidence(
    variant: str,
    seed: int,
    settings: Settings,
    root: Path = Path("evaluations"),
    models: Path | None = Path("models"),
    complete: bool = True,
    latency: bool = True,
) -> Evidence:
    """Collect the evidence of one checkpoint.

    Args:
        settings: name the sets and the exit settings that the evidence must have.
        root: the folder of all evidence.
        models: the folder of all checkpoints; null compares the files with each other only.
        complete: false leaves out what is missing, for a report of what there is.
        latency: false leaves out a latency that is missing.

    Raises:
        UserError: a file is missing (if complete), or was measured on another model, on another model than the
            other files, or with other exit settings, or was edited since.
    """
    rule = exit_rule(settings, variant)  # first, for it knows whether there is such a variant
    checkpoint = model = None
    if models is not None:
        folder = models / f"{variant}-{seed}"
        if complete or (folder / WEIGHTS).is_file():
            checkpoint, model = checkpoint_hash(folder), model_hash(folder)
    files = evidence_files(variant, seed, settings, root)
    wanted = {name for name in files if complete and (latency or name != "latency")}
    contents = {name: read_evidence_file(path) for name, path in files.items() if name in wanted or path.is_file()}
    refuse_changed({files[name]: content for name, content in contents.items()})
    for name, content in contents.items():
        checkpoint, model = checkpoint or content.get("checkpoint"), model or content.get("model")
        _belongs(files[name], content, model, rule)
    return Evidence(
        variant=variant,
        seed=seed,
        checkpoint=checkpoint,
        model=model,
        diagnose=contents.get("diagnose"),
        sts=_below("sts/", contents),
        retrieval=_below("retrieval/", contents),
        latency=contents.get("latency"),
    )


def read_evidence_file(path: Path) -> dict[str, Any]:
    """Read one file as it is, its checksum not compared yet; UserError if it is missing or no JSON object."""
    content = read_json(path, "dvc repro", check=False)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no evidence: delete it, `dvc repro` measures again")
    return content


def refuse_changed(contents: Mapping[Path, dict[str, Any]]) -> None:
    """Refuse files that were changed after they were written, all of them at once."""
    changed = [f"  - {path} {CHANGED}" for path, content in contents.items() if has_wrong_checksum(content)]
    if changed:
        raise UserError(
            "evidence is refused:\n" + "\n".join(changed) + "\ndelete it, and `dvc repro` measures again"
        )


def _belongs(path: Path, content: dict[str, Any], model: str | None, rule: dict[str, Any]) -> None:
    measured = str(content.get("model"))
    if measured != model:
        raise UserError(
            f"{path} was measured on model {measured[:12]}, not on {str(model)[:12]}, the one there is now "
            "(weights, exit rule, heads, tokenizer ...): `dvc repro` measures again"
        )
    if content.get("exit_rule") != rule:
        raise UserError(
            f"{path} was measured with exit settings {content.get('exit_rule')}, "
            f"the settings say {rule}: `dvc repro` measures again"
        )


def _below(prefix: str, contents: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name.removeprefix(prefix): item for name, item in contents.items() if name.startswith(prefix)}


def _project_name(file: Path) -> str:
    # A path outside the project says something about this machine, not about the data.
    if not file.is_absolute():
        return file.as_posix()
    return file.relative_to(Path.cwd()).as_posix() if file.is_relative_to(Path.cwd()) else file.name
