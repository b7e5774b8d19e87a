"""One MLflow run and one logged model for every model that was measured, brought up to date from the files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.colours import colours_of
from leap.core.files import read_json, sha256_of
from leap.core.project import Checkpoint, Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import checkpoint_hash, data_hashes, evidence_files, model_hash, read_evidence
from leap.gate.metrics import main_figures
from leap.registry.package_model import write_model_folder
from leap.registry.run_content import evidence_numbers
from leap.registry.run_writer import RunWriter
from leap.registry.runtime_code import code_hash
from leap.tracking.entities import HEADLINE, flat, history_numbers, params_of
from leap.tracking.store import Tracking


@dataclass(frozen=True)
class Logged:
    """A model in MLflow.

    Attributes:
        identity: the tags that find its run, its logged model and its version.
        run: the id of its run.
        model: the id of its logged model.
    """

    identity: dict[str, str]
    run: str
    model: str


def identity_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return what identifies a model in MLflow: its name, all that makes its vectors, and the code that serves it.

    Raises:
        UserError: the model is missing.
    """
    checkpoint_hash(checkpoint.model)
    return {
        "leap.variant": checkpoint.variant,
        "leap.seed": str(checkpoint.seed),
        "leap.model": model_hash(checkpoint.model),
        "leap.code": code_hash(),
    }


def log_checkpoint(tracking: Tracking, checkpoint: Checkpoint, card: str | None = None) -> Logged:
    """Bring the run and the logged model of a checkpoint up to date: settings, history, evidence, verdict.

    Logs what MLflow does not have yet, by the checksum of each file, and nothing twice. Works from the files
    alone, so a checkpoint restored from DVC's cache gets its run too. Evidence that was measured again opens a new
    run, since a metric of MLflow cannot be replaced. `card` is the README.md of the logged model, where it is
    uploaded now.

    Raises:
        UserError: the model is missing.
        StoreError: MLflow failed; the next call goes on from there.
    """
    identity = identity_of(checkpoint)
    settings = tracking.settings
    names = evidence_files(checkpoint.variant, checkpoint.seed, settings, checkpoint.root / "evaluations")
    evidence = {name: path for name, path in names.items() if _is_of(path, identity["leap.model"])}
    run = _run(tracking, checkpoint, identity, {name: sha256_of(path) for name, path in evidence.items()})
    model = _logged_model(tracking, checkpoint, identity, run, card)
    if not run.has("settings", "yes"):
        _log_settings(run, settings, checkpoint)
    history = checkpoint.training / "history.jsonl"
    if history.is_file() and not run.has("history", sha256_of(history)):
        run.log_numbers(history_numbers(history))
        run.done("history", sha256_of(history))
    record = checkpoint.training / "training.json"
    if record.is_file() and not run.tags.get("leap.logged.training"):
        seconds = read_json(record, "dvc repro").get("seconds")
        run.log_numbers([("train/seconds", seconds, 0)] * (seconds is not None))
        run.done("training", sha256_of(record))
    for name, path in evidence.items():
        if not run.has(name, sha256_of(path)):
            content = read_json(path, "dvc repro")
            run.log_inputs("evaluation", {_data_set(name, content, settings): content.get("data", {})})
            run.log_file(path, f"evidence/{name}".rpartition("/")[0])
            run.log_numbers(evidence_numbers(name, content), model)
            run.done(name, sha256_of(path))
    if _is_of(checkpoint.verdict, identity["leap.model"]):
        _log_verdict(run, settings, checkpoint, model)
    run.end()
    return Logged(identity, run.id, model)


def _run(
    tracking: Tracking, checkpoint: Checkpoint, identity: dict[str, str], evidence: dict[str, str]
) -> RunWriter:
    """Return the model's run: the one it has, the live run of its training, or a new one."""
    run = RunWriter.find(tracking, identity)
    if run and all(run.tags.get(f"leap.logged.{name}", own) == own for name, own in evidence.items()):
        return run
    trained = {name: identity[name] for name in ("leap.variant", "leap.seed")}
    trained["leap.checkpoint"] = checkpoint_hash(checkpoint.model)
    live = next((run for run in tracking.find(trained) if "leap.model" not in run.data.tags), None)
    if live is not None:
        run = RunWriter(tracking, live)
        run.set_tags(identity)
        return run
    tags = {"leap.profile": tracking.settings.profile, **trained, **identity}
    return RunWriter.create(tracking, checkpoint.name, tags, "stages/train.py")


def _logged_model(
    tracking: Tracking, checkpoint: Checkpoint, identity: dict[str, str], run: RunWriter, card: str | None
) -> str:
    """Return the id of the logged model; upload it if it is not there whole."""
    client, experiment = tracking.client, tracking.experiment
    assert client is not None
    assert experiment is not None
    condition = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in identity.items())
    models = client.search_logged_models([experiment], condition)
    ready = [model.model_id for model in models if model.status == "READY"]
    if ready:
        return str(ready[0])
    # One that a kill left half uploaded is completed.
    model = (
        models[0]
        if models
        else client.create_logged_model(experiment, checkpoint.name, source_run_id=run.id, tags=identity)
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model_folder(checkpoint.model, folder, identity, card)
        client.log_model_artifacts(model.model_id, str(folder))
    run.log_output(model.model_id)
    client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def _log_settings(run: RunWriter, settings: Settings, checkpoint: Checkpoint) -> None:
    content = settings.variant(checkpoint.variant).model_dump(mode="json")
    blocks = settings.model_dump(mode="json", include={"data", "teacher", "evaluation"})
    run.set_params(params_of(content) | flat(blocks))
    colour = colours_of(settings.variants)[checkpoint.variant]
    run.set_tags({"mlflow.runColor": colour, "mlflow.note.content": content["description"]})
    project = Project(checkpoint.root)
    for context, path in (("training", project.sentences), ("calibration", project.held_out)):
        if path.is_file():
            run.log_inputs(context, {path.stem: data_hashes([path])})
    run.done("settings", "yes")


def _log_verdict(run: RunWriter, settings: Settings, checkpoint: Checkpoint, model: str) -> None:
    verdict, checksum = read_json(checkpoint.verdict, "dvc repro"), sha256_of(checkpoint.verdict)
    if run.has("verdict", checksum):
        return
    root = checkpoint.root
    place = (checkpoint.variant, checkpoint.seed, settings, root / "evaluations", root / "models")
    figures = main_figures(read_evidence(*place, complete=False), settings, verdict["passed"])
    run.log_numbers(((name, figures[name], 0) for name in HEADLINE if figures.get(name) is not None), model)
    run.log_file(checkpoint.verdict, "verdict")
    run.set_tags({"leap.verdict": "passed" if verdict["passed"] else "refused"})
    run.done("verdict", checksum)


def _is_of(path: Path, model: str) -> bool:
    """Return whether a file speaks of this model: one of an older model has its stage yet to run."""
    return path.is_file() and read_json(path, "dvc repro").get("model") == model


def _data_set(name: str, content: dict[str, Any], settings: Settings) -> str:
    return name.rpartition("/")[2] if "/" in name else str(content.get("set", settings.evaluation.primary_set))
