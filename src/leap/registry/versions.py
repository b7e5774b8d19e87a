"""The model registry: which checkpoint is `candidate`, `champion` and `previous`.

A version is a checkpoint's content (tag `leap.checkpoint`), so registering twice changes nothing. A version's
tags say what is known of it, and the champion follows from the tags of all (`leap.registry.ranking`). Everything
is uploaded and described before an alias moves, and the champion's moves last: a reader of `@champion` never
sees half a model, and what a kill left undone the next promotion does.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.core.errors import UserError
from leap.core.files import sha256_of_json
from leap.core.passwords import without_passwords
from leap.gate.verdict import mark
from leap.registry.package_model import write_model_folder
from leap.registry.ranking import Entry, rank
from leap.tracking.store import Tracking, died, failures, first_line, one_at_a_time, this_process
from leap.tracking.training_run import identity

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

logger = logging.getLogger(__name__)

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
# Others that promote at the same moment can make this program look again, though not without end.
TURNS = 20
# What the page of the registered model says; each version's own page has its verdict.
ABOUT = (
    "Sentence encoders that may exit early. `champion` is the best that passed the gate, `previous` the one "
    "before it, `candidate` the newest that passed and is not better. In a version's description ! marks a "
    "failed check that only warns. See docs/serving.md."
)
# What a store answers to a write that another one was faster with, or while it is locked.
DISTURBED = ("BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "TEMPORARILY_UNAVAILABLE")


@dataclass(frozen=True)
class Standing:
    """Where a checkpoint stands in the registry; the verdict's `registry`."""

    version: int
    aliases: list[str]
    decision: str

    def as_json(self) -> dict[str, Any]:
        """The form of the verdict file."""
        return {"version": self.version, "aliases": self.aliases, "decision": self.decision}


@dataclass(frozen=True)
class Registered:
    """A version as `leap history` shows it; `events` are (time, what happened) of its days as champion."""

    version: int
    name: str
    checkpoint: str
    aliases: list[str]
    primary: str
    passed: bool
    created: str
    decision: str
    events: list[tuple[str, str]]


def promote(
    tracking: Tracking,
    verdict: dict[str, Any],
    data: dict[str, str],
    models: Path = Path("models"),
    card: str | None = None,
) -> Standing:
    """Registers a passing checkpoint as candidate and makes it champion if it is better than the present one.

    A champion measured on other data or by another primary metric cannot be compared: it gives way, for it
    has not passed this examination, and stays as `previous`. Equal is not better. A version that a rollback
    took back stays out.

    Args:
        tracking: opened with `required=True`.
        verdict: of a passing checkpoint.
        data: hashes of the data behind the primary metric.
        models: the folder of all checkpoints.
        card: the README.md of the registered model.

    Raises:
        UserError: the verdict refuses the model, others are compared with it, or the registry cannot be
            reached.
    """
    name = f"{verdict['variant']}-{verdict['seed']}"
    if not verdict["passed"]:
        raise UserError(f"{name} is refused by the gate: it is not registered")
    if verdict["role"] is not None:
        raise UserError(f"{name} is gate.{verdict['role']}, which others are compared with: it is never promoted")
    with _reachable(tracking), one_at_a_time("registry"):
        registry = _Registry(tracking)

        def work() -> Standing:
            version = registry.find(verdict["checkpoint"]) or registry.register(verdict, models / name, card)
            registry.describe(version, verdict, data)
            registry.settle(str(version.version))
            return registry.standing(str(version.version))

        return _again_if_disturbed(work)


def note_refusal(tracking: Tracking, verdict: dict[str, Any], data: dict[str, str]) -> Standing | None:
    """Writes a verdict that refuses into the version of its checkpoint, which can then not become champion.

    Moves no alias: a champion that is refused later stays until a passing model takes its place or a person
    rolls back.

    Returns:
        Where the checkpoint stands; null if it was never registered.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _reachable(tracking), one_at_a_time("registry"):
        registry = _Registry(tracking)
        version = registry.find(verdict["checkpoint"])
        if version is None:
            return None
        registry.describe(version, verdict, data)
        return registry.standing(str(version.version))


def standing(tracking: Tracking, checkpoint: str) -> Standing | None:
    """Where a checkpoint stands now; null if it was never registered. Changes nothing.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _reachable(tracking):
        registry = _Registry(tracking)
        version = registry.find(checkpoint)
        return registry.standing(str(version.version)) if version else None


def current_aliases(tracking: Tracking) -> dict[str, list[str]]:
    """The aliases of every registered checkpoint at this moment, by the checkpoint's hash.

    Raises:
        UserError: the registry cannot be reached.
    """
    return {item.checkpoint: item.aliases for item in history(tracking)}


def history(tracking: Tracking) -> list[Registered]:
    """Every registered version, the newest first; empty where nothing was ever registered.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _reachable(tracking):
        return _Registry(tracking).history()


def rollback(tracking: Tracking) -> Standing:
    """Makes the previous champion champion again; the two change places.

    What is taken back does not become champion by the gate again, only by another rollback.

    Raises:
        UserError: there is no previous champion, or the registry cannot be reached.
    """
    with _reachable(tracking), one_at_a_time("registry"):
        registry = _Registry(tracking)
        registry.mend()
        previous, champion = registry.holder(PREVIOUS), registry.holder(CHAMPION)
        if previous is None:
            raise UserError(f"{registry.name} has no version with alias {PREVIOUS}: nothing to roll back to")
        instead = ""
        registry.tag(previous, {"leap.withdrawn": "false"})
        if champion is not None:
            taken_back = {"leap.withdrawn": "true", "leap.decision": "taken back by a rollback"}
            registry.tag(champion, taken_back)
            instead = f" in place of version {champion.version}"
        registry.crown(str(previous.version), f"made champion again by a rollback{instead}")
        return registry.standing(str(previous.version))


def history_text(versions: list[Registered]) -> str:
    """The history for a terminal: a line a version, then who became champion when."""
    if not versions:
        return "nothing is registered"
    rows = [("version", "model", "aliases", "passes", "primary metric", "registered", "decision")]
    rows += [
        (
            str(item.version),
            item.name,
            ", ".join(item.aliases) or "-",
            "yes" if item.passed else "no",
            item.primary,
            item.created,
            item.decision,
        )
        for item in versions
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    events = sorted((at, f"version {item.version} {what}") for item in versions for at, what in item.events)
    return "\n".join([*lines, "", *(f"{at}  {what}" for at, what in events)])


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

    def register(self, verdict: dict[str, Any], folder: Path, card: str | None) -> ModelVersion:
        """Uploads the checkpoint as a model and makes it a version."""
        assert self._tracking.experiment is not None
        checkpoint = verdict["checkpoint"]
        runs = self._tracking.find(identity(verdict["variant"], verdict["seed"], checkpoint))
        name = f"{verdict['variant']}-{verdict['seed']}"
        model = self._left_upload(name, checkpoint) or self._client.create_logged_model(
            self._tracking.experiment,
            name=name,
            source_run_id=runs[0].info.run_id if runs else None,
            tags={"leap.checkpoint": checkpoint, "leap.process": this_process()},
        )
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch) / "model"
            write_model_folder(folder, written, {"checkpoint": checkpoint}, card)
            self._client.log_model_artifacts(model.model_id, str(written))
        self._client.finalize_logged_model(model.model_id, "READY")
        self._ensure_model()
        made = self._client.create_model_version(
            self.name,
            source=f"models:/{model.model_id}",
            run_id=runs[0].info.run_id if runs else None,
            tags={"leap.checkpoint": checkpoint},
            model_id=model.model_id,
        )
        first = self.find(checkpoint) or made
        if first.version != made.version:
            # Somebody else registered the same content meanwhile, and the older version stays.
            self._client.delete_model_version(self.name, made.version)
        return first

    def _left_upload(self, name: str, checkpoint: str) -> LoggedModel | None:
        """What a killed program left of the same upload; only called while no version has this content."""
        assert self._tracking.experiment is not None
        found = self._client.search_logged_models(
            [self._tracking.experiment], f"name = '{name}' AND tags.`leap.checkpoint` = '{checkpoint}'"
        )
        return next((model for model in found if died(model.tags.get("leap.process", ""))), None)

    def describe(self, version: ModelVersion, verdict: dict[str, Any], data: dict[str, str]) -> None:
        """The verdict in the version's description and tags, brought up to date."""
        passed = sum(check["passed"] for check in verdict["checks"])
        primary = verdict["primary_metric"]
        summary = f"{verdict['variant']}-{verdict['seed']}: {passed} of {len(verdict['checks'])} checks pass"
        reasons = "\n".join(f"- {mark(check)} {check['name']}: {check['reason']}" for check in verdict["checks"])
        text = f"{summary}\n\n{reasons}"
        if version.description != text:
            self._client.update_model_version(self.name, version.version, text)
        compared = {
            "leap.primary_metric": primary["metric"],
            "leap.primary_value": json.dumps(primary["value"]),
            "leap.primary_data": sha256_of_json(data),
        }
        if any(version.tags.get(key) != value for key, value in compared.items()):
            compared["leap.examined"] = self._now()
        # The last one makes it eligible: nobody compares what is described by half.
        self.tag(
            version,
            {
                "leap.variant": verdict["variant"],
                "leap.seed": str(verdict["seed"]),
                "leap.verdict": summary,
                **compared,
                "leap.passed": json.dumps(verdict["passed"] and verdict["role"] is None),
            },
        )

    def settle(self, number: str) -> None:
        """Gives the aliases to whom they belong by the tags of all; `number` is the version just described.

        Looks again after each change: what others described meanwhile counts too.
        """
        self.mend()
        for _ in range(TURNS):
            best, decisions = rank(self.entries())
            self._place_candidate(number, best, decisions)
            champion = self.holder(CHAMPION)
            if best is None or (champion is not None and int(champion.version) == best):
                break
            if str(best) != number:
                logger.info("registry: version %d is the best that passes", best)
            self.crown(str(best), decisions[best])
        self._drop(CANDIDATE, str(best))
        self.mend()

    def crown(self, number: str, decision: str) -> None:
        """Makes a version champion and the present champion previous."""
        version, champion = self._client.get_model_version(self.name, number), self.holder(CHAMPION)
        replaced = {} if champion is None else {"leap.replaces": str(champion.version)}
        events = self._events(version)
        if self._newest_event() != (number, decision):
            events.append((self._now(), decision))
        self.tag(version, {**replaced, "leap.decision": decision, "leap.events": json.dumps(events)})
        if champion is not None:
            self.alias(PREVIOUS, str(champion.version))
        self.alias(CHAMPION, number)

    def mend(self) -> None:
        """Undoes half a change of champions: `previous` is never the champion itself."""
        champion, previous = self.holder(CHAMPION), self.holder(PREVIOUS)
        if champion is None or previous is None or champion.version != previous.version:
            return
        before = champion.tags.get("leap.replaces")
        if before is None or before == str(champion.version):
            self._drop(PREVIOUS, str(champion.version))
        else:
            self.alias(PREVIOUS, before)

    def standing(self, number: str) -> Standing:
        """What the registry says of a version."""
        version = self._client.get_model_version(self.name, number)
        return Standing(int(number), self._aliases_of(number), version.tags.get("leap.decision", "registered"))

    def history(self) -> list[Registered]:
        """Every version, the newest first."""
        versions = list(self._client.search_model_versions(f"name = '{self.name}'"))
        held = self._aliases() if versions else {}
        return [
            Registered(
                version=int(version.version),
                name=f"{version.tags.get('leap.variant')}-{version.tags.get('leap.seed')}",
                checkpoint=version.tags.get("leap.checkpoint", ""),
                aliases=sorted(alias for alias, number in held.items() if number == str(version.version)),
                primary=f"{version.tags.get('leap.primary_metric')} {version.tags.get('leap.primary_value')}",
                passed=version.tags.get("leap.passed") == "true",
                created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat("T", "seconds"),
                decision=version.tags.get("leap.decision", "registered"),
                events=self._events(version),
            )
            for version in sorted(versions, key=lambda version: -int(version.version))
        ]

    def entries(self) -> list[Entry]:
        """Every version for the ranking."""
        found = self._client.search_model_versions(f"name = '{self.name}'")
        return [Entry(int(version.version), dict(version.tags)) for version in found]

    def holder(self, alias: str) -> ModelVersion | None:
        """The version with an alias."""
        number = self._aliases().get(alias)
        return self._client.get_model_version(self.name, number) if number else None

    def alias(self, alias: str, number: str) -> None:
        """Moves an alias."""
        self._client.set_registered_model_alias(self.name, alias, number)

    def tag(self, version: ModelVersion, tags: dict[str, str]) -> None:
        """Sets the tags that differ, in their order."""
        for key, value in tags.items():
            if version.tags.get(key) != value:
                self._client.set_model_version_tag(self.name, version.version, key, value)

    def _place_candidate(self, number: str, best: int | None, decisions: dict[int, str]) -> None:
        """`candidate` is the newest version that passes and was never champion."""
        held = self._aliases_of(number)
        if int(number) not in decisions or str(best) == number or CHAMPION in held or PREVIOUS in held:
            return
        version = self._client.get_model_version(self.name, number)
        self.tag(version, {"leap.decision": decisions[int(number)]})
        newest = self.holder(CANDIDATE)
        if newest is None or int(newest.version) < int(number):
            self.alias(CANDIDATE, number)

    def _aliases_of(self, number: str) -> list[str]:
        return sorted(name for name, held in self._aliases().items() if held == str(number))

    def _newest_event(self) -> tuple[str, str] | None:
        newest = max(
            (
                (at, str(version.version), what)
                for version in self._client.search_model_versions(f"name = '{self.name}'")
                for at, what in self._events(version)
            ),
            default=None,
        )
        return None if newest is None else (newest[1], newest[2])

    def _now(self) -> str:
        """The time, but later than all that the registry has: what is compared survives a clock set back."""
        versions = list(self._client.search_model_versions(f"name = '{self.name}'"))
        known = [version.tags["leap.examined"] for version in versions if "leap.examined" in version.tags]
        known += [at for version in versions for at, _ in self._events(version)]
        return max([now(), *(later(at) for at in known)])

    @staticmethod
    def _events(version: ModelVersion) -> list[tuple[str, str]]:
        return [(at, what) for at, what in json.loads(version.tags.get("leap.events", "[]"))]

    def _drop(self, alias: str, number: str) -> None:
        if self._aliases().get(alias) == number:
            self._client.delete_registered_model_alias(self.name, alias)

    def _aliases(self) -> dict[str, str]:
        from mlflow.exceptions import MlflowException

        try:
            aliases = self._client.get_registered_model(self.name).aliases
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}
        return {name: str(held) for name, held in aliases.items()}

    def _ensure_model(self) -> None:
        from mlflow.exceptions import MlflowException

        if self._client.search_registered_models(f"name = '{self.name}'"):
            return
        try:
            self._client.create_registered_model(self.name, description=ABOUT)
        except MlflowException as error:
            # Somebody else created it between the look and the call.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def _again_if_disturbed(work: Callable[[], Standing]) -> Standing:
    """Of two programs that write the same tag at one moment the store refuses one, which does all again."""
    from mlflow.exceptions import MlflowException

    for turn in range(TURNS):
        try:
            return work()
        except MlflowException as error:
            if turn == TURNS - 1 or error.error_code not in DISTURBED:
                raise
            time.sleep(random.uniform(0.1, 0.5))
    raise AssertionError("unreachable")


def now() -> str:
    """The time in UTC, which sorts as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def later(moment: str) -> str:
    """A millisecond after a moment that `now` wrote."""
    after = datetime.fromisoformat(moment) + timedelta(milliseconds=1)
    return after.isoformat(timespec="milliseconds")


@contextmanager
def _reachable(tracking: Tracking) -> Iterator[None]:
    try:
        yield
    except failures() as error:
        raise UserError(
            f"the registry at {without_passwords(tracking.uri)} cannot be used: {first_line(error)}; "
            "start the server or mend tracking.uri, and run the gate again"
        ) from None
