"""One MLflow run, written from files: parameters, metrics, tags, inputs and artefacts, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leap.core.files import sha256_of_json
from leap.tracking.entities import METRICS_A_CALL, Number, metric, source_tags
from leap.tracking.store import Tracking

if TYPE_CHECKING:
    from mlflow.entities import Run

PARAMS_A_CALL = 100


class RunWriter:
    """A run, and what it has already: its tags `leap.logged.<name>` hold the checksums of what was logged."""

    def __init__(self, tracking: Tracking, run: Run) -> None:
        assert tracking.client is not None
        self._client = tracking.client
        self._run = run
        self.id: str = run.info.run_id
        self.tags: dict[str, str] = dict(run.data.tags)

    @classmethod
    def find(cls, tracking: Tracking, tags: Mapping[str, str]) -> Self | None:
        """Return the newest run with these tags; null if there is none."""
        runs = tracking.find(dict(tags))
        return cls(tracking, runs[0]) if runs else None

    @classmethod
    def create(cls, tracking: Tracking, name: str, tags: Mapping[str, str], script: str) -> Self:
        return cls(tracking, tracking.create_run(name, {**tags, **source_tags(script)}))

    def has(self, name: str, checksum: str) -> bool:
        return self.tags.get(f"leap.logged.{name}") == checksum

    def done(self, name: str, checksum: str) -> None:
        self.set_tags({f"leap.logged.{name}": checksum})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        new = [RunTag(name, value) for name, value in tags.items() if self.tags.get(name) != value]
        if new:
            self._client.log_batch(self.id, tags=new)
            self.tags |= tags

    def set_params(self, params: Mapping[str, str]) -> None:
        """Set the parameters that the run does not have yet: MLflow's never change."""
        from mlflow.entities import Param

        known = self._run.data.params
        new = [Param(name, value) for name, value in params.items() if name not in known]
        for start in range(0, len(new), PARAMS_A_CALL):
            self._client.log_batch(self.id, params=new[start : start + PARAMS_A_CALL])

    def log_numbers(self, numbers: Iterable[Number], model: str | None = None) -> None:
        """Log the numbers whose steps the run does not have, linked to a logged model where its id is given.

        A live run logged some of the training's, and what a kill left half logged is completed.
        """
        numbers, now = list(numbers), int(time.time() * 1000)
        known = {
            name: {item.step for item in self._client.get_metric_history(self.id, name)}
            for name in {name for name, _, _ in numbers} & self._run.data.metrics.keys()
        }
        metrics = [
            metric(name, value, step, now, model)
            for name, value, step in numbers
            if step not in known.get(name, ())
        ]
        for start in range(0, len(metrics), METRICS_A_CALL):
            self._client.log_batch(self.id, metrics[start : start + METRICS_A_CALL])

    def log_file(self, path: Path, folder: str = "") -> None:
        if path.is_dir():
            self._client.log_artifacts(self.id, str(path), folder or None)
        else:
            self._client.log_artifact(self.id, str(path), folder or None)

    def log_inputs(self, context: str, data: Mapping[str, Mapping[str, str]]) -> None:
        """Name the data sets that went into the run.

        Args:
            context: "training", "calibration" or "evaluation".
            data: the sha256 of each file by its path, by the name of the data set.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        self._client.log_inputs(
            self.id,
            [
                DatasetInput(
                    Dataset(name, digest(files), "local", json.dumps({"uri": ", ".join(files)[:400]})),
                    [InputTag("mlflow.data.context", context)],
                )
                for name, files in data.items()
            ],
        )

    def log_output(self, model: str) -> None:
        from mlflow.entities import LoggedModelOutput

        outputs = self._client.get_run(self.id).outputs
        if outputs is None or model not in (output.model_id for output in outputs.model_outputs):
            self._client.log_outputs(self.id, [LoggedModelOutput(model, 0)])

    def end(self, status: str = "FINISHED") -> None:
        if self._run.info.status != status:
            self._client.set_terminated(self.id, status)


def digest(files: Mapping[str, Any]) -> str:
    """Return the digest of a data set: the file's sha256, or that of all its files, as short as MLflow asks."""
    only = next(iter(files.values())) if len(files) == 1 else sha256_of_json(dict(files))
    return str(only)[:32]
