"""The model registry: which checkpoint is `candidate`, `champion` and `previous`.

A version is a checkpoint's content (tag `leap.checkpoint`), so registering twice changes nothing. Everything
is uploaded and described before an alias moves, and the champion's moves last: a reader of `@champion` never
sees half a model.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.errors import UserError
from leap.files import sha256_of_json
from leap.gate.package_model import write_model_folder
from leap.tracking.run import identity
from leap.tracking.store import Tracking, failures, first_line, one_at_a_time

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

logger = logging.getLogger(__name__)

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
# The last part of a metric's path that says "less is better".
LESS_IS_BETTER = ("drop", "expected_layers", "nn_fail", "ms_")


@dataclass(frozen=True)
class Standing:
    """Where a checkpoint stands in the registry; the verdict's `registry`."""

    version: int
    aliases: list[str]
    decision: str

    def as_json(self) -> dict[str, Any]:
        """The form of the verdict file."""
        return {"version": self.version, "aliases": self.aliases, "decision": self.decision}


def promote(
    tracking: Tracking, verdict: dict[str, Any], data: dict[str, str], models: Path = Path("models")
) -> Standing:
    """Registers a passing checkpoint as candidate and makes it champion if it is better than the present one.

    A champion measured on other data or by another primary metric cannot be compared: it gives way, for it
    has not passed this examination, and stays as `previous`. Equal is not better.

    Args:
        tracking: opened with `required=True`.
        verdict: of a passing checkpoint.
        data: hashes of the data behind the primary metric.
        models: the folder of all checkpoints.

    Raises:
        UserError: the verdict refuses the model, or the registry cannot be reached.
    """
    if not verdict["passed"]:
        raise UserError(
            f"{verdict['variant']}-{verdict['seed']} is refused by the gate: it is not registered"
        )
    with _reachable(tracking), one_at_a_time("registry"):
        registry = _Registry(tracking)
        version = registry.find(verdict["checkpoint"])
        if version is None:
            version = registry.register(verdict, models / f"{verdict['variant']}-{verdict['seed']}")
        registry.describe(version, verdict, data)
        return registry.place(version.version)


def standing(tracking: Tracking, checkpoint: str) -> Standing | None:
    """Where a checkpoint stands now; null if it was never registered. Changes nothing.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _reachable(tracking):
        registry = _Registry(tracking)
        version = registry.find(checkpoint)
        return registry.standing(version.version) if version else None


def current_aliases(tracking: Tracking) -> dict[str, list[str]]:
    """The aliases of every registered checkpoint at this moment, by the checkpoint's hash.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _reachable(tracking):
        return _Registry(tracking).aliases_by_checkpoint()


def rollback(tracking: Tracking) -> Standing:
    """Makes the previous champion champion again; the two change places.

    Raises:
        UserError: there is no previous champion, or the registry cannot be reached.
    """
    with _reachable(tracking), one_at_a_time("registry"):
        registry = _Registry(tracking)
        previous, champion = registry.holder(PREVIOUS), registry.holder(CHAMPION)
        if previous is None:
            raise UserError(f"{registry.name} has no version with alias {PREVIOUS}: nothing to roll back to")
        if champion is not None:
            registry.alias(PREVIOUS, champion.version)
        registry.alias(CHAMPION, previous.version)
        instead = f" in place of version {champion.version}" if champion else ""
        return registry.decide(previous.version, f"made champion again by a rollback{instead}")


class _Registry:
    """One registered model."""

    def __init__(self, tracking: Tracking) -> None:
        assert tracking.client is not None
        self._client = tracking.client
        self._tracking = tracking
        self.name = tracking.settings.gate.registered_model

    def find(self, checkpoint: str) -> ModelVersion | None:
        """The version of a checkpoint, whatever run or variant it came from."""
        clause = f"name = '{self.name}' and tags.`leap.checkpoint` = '{checkpoint}'"
        found = list(self._client.search_model_versions(clause))
        return min(found, key=lambda version: int(version.version)) if found else None

    def register(self, verdict: dict[str, Any], folder: Path) -> ModelVersion:
        """Uploads the checkpoint as a model and makes it a version."""
        assert self._tracking.experiment is not None
        checkpoint = verdict["checkpoint"]
        runs = self._tracking.find(identity(verdict["variant"], verdict["seed"], checkpoint))
        model = self._client.create_logged_model(
            self._tracking.experiment,
            name=f"{verdict['variant']}-{verdict['seed']}",
            source_run_id=runs[0].info.run_id if runs else None,
            tags={"leap.checkpoint": checkpoint},
        )
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch) / "model"
            write_model_folder(folder, written, {"checkpoint": checkpoint})
            self._client.log_model_artifacts(model.model_id, str(written))
        self._client.finalize_logged_model(model.model_id, "READY")
        self._ensure_model()
        return self._client.create_model_version(
            self.name,
            source=f"models:/{model.model_id}",
            run_id=runs[0].info.run_id if runs else None,
            tags={"leap.checkpoint": checkpoint},
            model_id=model.model_id,
        )

    def describe(self, version: ModelVersion, verdict: dict[str, Any], data: dict[str, str]) -> None:
        """The verdict in the version's description and tags, brought up to date."""
        passed = sum(check["passed"] for check in verdict["checks"])
        primary = verdict["primary_metric"]
        summary = f"{verdict['variant']}-{verdict['seed']}: {passed} of {len(verdict['checks'])} checks pass"
        reasons = "\n".join(f"- {check['name']}: {check['reason']}" for check in verdict["checks"])
        self._client.update_model_version(self.name, version.version, f"{summary}\n\n{reasons}")
        tags = {
            "leap.variant": verdict["variant"],
            "leap.seed": str(verdict["seed"]),
            "leap.verdict": summary,
            "leap.primary_metric": primary["metric"],
            "leap.primary_value": json.dumps(primary["value"]),
            "leap.primary_data": sha256_of_json(data),
        }
        for key, value in tags.items():
            if version.tags.get(key) != value:
                self._client.set_model_version_tag(self.name, version.version, key, value)

    def place(self, number: str) -> Standing:
        """Gives a described version its alias: champion if it is better, else candidate."""
        version, champion = self._client.get_model_version(self.name, number), self.holder(CHAMPION)
        if champion is not None and champion.version == number:
            self._drop(CANDIDATE, number)
            self._drop(PREVIOUS, number)
            return self.standing(number)
        if champion is None:
            return self._crown(number, "became champion: there was none")
        if self.is_previous(number):
            return self.standing(number)
        better, reason = compare(version.tags, champion.tags, int(champion.version))
        if not better:
            newest = self.holder(CANDIDATE)
            if newest is None or int(newest.version) <= int(number):
                self.alias(CANDIDATE, number)
            return self.decide(number, f"stays out: {reason}")
        self.alias(CANDIDATE, number)
        self.alias(PREVIOUS, champion.version)
        return self._crown(number, f"became champion: {reason}")

    def _crown(self, number: str, decision: str) -> Standing:
        self._client.set_model_version_tag(self.name, number, "leap.decision", decision)
        self.alias(CHAMPION, number)
        self._drop(CANDIDATE, number)
        return self.standing(number)

    def decide(self, number: str, decision: str) -> Standing:
        """Keeps the decision with the version, so that the next run of the gate says the same."""
        self._client.set_model_version_tag(self.name, number, "leap.decision", decision)
        return self.standing(number)

    def standing(self, number: str) -> Standing:
        """What the registry says of a version."""
        version = self._client.get_model_version(self.name, number)
        aliases = sorted(name for name, held in self._aliases().items() if held == str(number))
        return Standing(int(number), aliases, version.tags.get("leap.decision", "registered"))

    def aliases_by_checkpoint(self) -> dict[str, list[str]]:
        """Every version's aliases by its checkpoint; empty where nothing was ever registered."""
        versions = list(self._client.search_model_versions(f"name = '{self.name}'"))
        held = self._aliases() if versions else {}
        return {
            version.tags.get("leap.checkpoint", ""): sorted(
                alias for alias, number in held.items() if number == str(version.version)
            )
            for version in versions
        }

    def is_previous(self, number: str) -> bool:
        """Whether a version was champion before: people or a better model took it back, and so it stays."""
        return self._aliases().get(PREVIOUS) == str(number)

    def holder(self, alias: str) -> ModelVersion | None:
        """The version with an alias."""
        number = self._aliases().get(alias)
        return self._client.get_model_version(self.name, number) if number else None

    def alias(self, alias: str, number: str) -> None:
        """Moves an alias."""
        self._client.set_registered_model_alias(self.name, alias, number)

    def _drop(self, alias: str, number: str) -> None:
        if self._aliases().get(alias) == str(number):
            self._client.delete_registered_model_alias(self.name, alias)

    def _aliases(self) -> dict[str, str]:
        return {
            name: str(held) for name, held in self._client.get_registered_model(self.name).aliases.items()
        }

    def _ensure_model(self) -> None:
        if not self._client.search_registered_models(f"name = '{self.name}'"):
            self._client.create_registered_model(self.name)


def compare(candidate: dict[str, str], champion: dict[str, str], number: int) -> tuple[bool, str]:
    """Whether a candidate replaces the champion, by the tags of both versions, and why.

    Args:
        candidate: tags of the candidate's version.
        champion: tags of the champion's version.
        number: of the champion's version, for the reason.
    """
    metric = candidate["leap.primary_metric"]
    mine = json.loads(candidate["leap.primary_value"])
    theirs = json.loads(champion.get("leap.primary_value", "null"))
    for key, what in (("leap.primary_metric", "by another metric"), ("leap.primary_data", "on other data")):
        if candidate[key] != champion.get(key):
            return True, f"version {number} was measured {what} and cannot be compared"
    if mine is None:
        return False, f"{metric} is missing"
    if theirs is None:
        return True, f"{metric} of version {number} is missing"
    sign = -1 if less_is_better(metric) else 1
    word = "better than" if sign * mine > sign * theirs else "equal to" if mine == theirs else "worse than"
    return word == "better than", f"{metric} {mine:.6g} is {word} version {number}'s {theirs:.6g}"


def less_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is the better one, by its name."""
    return metric.rpartition(".")[2].startswith(LESS_IS_BETTER)


@contextmanager
def _reachable(tracking: Tracking) -> Iterator[None]:
    try:
        yield
    except failures() as error:
        raise UserError(
            f"the registry at {tracking.uri} cannot be used: {first_line(error)}; "
            "start the server or mend tracking.uri, and run the gate again"
        ) from None
