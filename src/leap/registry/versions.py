"""The model registry: which version is `candidate`, `champion` and `previous`.

A version is all that makes vectors: weights, exit rule, heads, calibration, tokenizer, prompts and code (the tags
of `Logged.identity`), so registering twice changes nothing. Its tags say what the gate found. A version is
described before an alias moves to it, and the champion's alias moves last: a reader of `@champion` never sees half
a model, and the next promotion completes what a kill interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leap.core.errors import UserError
from leap.core.files import sha256_of_json
from leap.core.grid import Grid
from leap.core.passwords import without_passwords
from leap.gate.verdict import mark
from leap.registry.checkpoint_run import Logged
from leap.registry.ranking import compare
from leap.tracking.store import StoreError, Tracking

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
# What the page of the registered model says; each version's own page has its verdict.
ABOUT = (
    "Sentence encoders that may exit early. `champion` is the best that passed the gate, `previous` the one "
    "before it, `candidate` the newest that passed and is not better. In a version's description ! marks a "
    "failed check that only warns. See docs/serving.md."
)


@dataclass(frozen=True)
class Standing:
    """Where a model stands in the registry."""

    version: int
    aliases: list[str]
    decision: str


@dataclass(frozen=True)
class Registered(Standing):
    """A version as `leap history` shows it; `events` are (time, what happened) of its days as champion."""

    name: str
    primary: str
    passed: bool
    created: str
    events: list[tuple[str, str]]


def promote(tracking: Tracking, verdict: dict[str, Any], logged: Logged, data: dict[str, str]) -> Standing:
    """Register a model that passes as candidate and make it champion if it is better than the present one.

    A champion gives way, and stays as `previous`, if it is refused now, was measured on other data or by another
    metric, or is the same weights with an earlier rule. Equal is not better. What a rollback took back stays out.

    Args:
        tracking: opened with `required=True`.
        verdict: of a model that passes.
        logged: the same model in MLflow.
        data: hashes of the data behind the primary metric.

    Raises:
        UserError: the verdict refuses the model, others are compared with it, or the registry cannot be reached.
    """
    name = f"{verdict['variant']}-{verdict['seed']}"
    if not verdict["passed"]:
        raise UserError(f"{name} is refused by the gate, so it is not registered: `leap gate` says why")
    if verdict["role"] is not None:
        raise UserError(f"{name} is gate.{verdict['role']}, which others are compared with: it is never promoted")
    with _registry(tracking) as registry:
        version = registry.find(logged.identity) or registry.register(logged)
        registry.describe(version, verdict, data)
        registry.settle(version)
        return registry.standing(version.version)


def note_refusal(
    tracking: Tracking, verdict: dict[str, Any], logged: Logged, data: dict[str, str]
) -> Standing | None:
    """Write a verdict that refuses into the version of its model, which can then not become champion.

    A refused version loses `candidate`; a champion that is refused later stays until a passing model takes its
    place or a person rolls back.

    Returns:
        Where the model stands; null if it was never registered.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _registry(tracking) as registry:
        version = registry.find(logged.identity)
        if version is None:
            return None
        registry.describe(version, verdict, data)
        registry.tag(version, {"leap.decision": "refused by the gate"})
        registry.drop(CANDIDATE, version)
        return registry.standing(version.version)


def history(tracking: Tracking) -> list[Registered]:
    """Return every registered version, the newest first; empty where nothing was ever registered.

    Raises:
        UserError: the registry cannot be reached.
    """
    with _registry(tracking) as registry:
        return registry.history()


def rollback(tracking: Tracking, force: bool = False) -> Standing:
    """Make the previous champion champion again; the two change places.

    What is taken back does not become champion by the gate again, only by another rollback.

    Args:
        tracking: opened with `required=True`.
        force: also to a version that the gate refuses now.

    Raises:
        UserError: there is no previous champion, the gate refuses it, or the registry cannot be reached.
    """
    with _registry(tracking) as registry:
        registry.repair()
        previous, champion = registry.holder(PREVIOUS), registry.holder(CHAMPION)
        if previous is None:
            raise UserError(f"{registry.name} has no version with alias {PREVIOUS}: nothing to roll back to")
        if previous.tags.get("leap.passed") != "true" and not force:
            raise UserError(
                f"version {previous.version}, the previous champion, is refused by the gate now "
                f"({previous.tags.get('leap.verdict')}): `leap rollback --force` makes it champion all the same"
            )
        registry.tag(previous, {"leap.withdrawn": "false"})
        instead = ""
        if champion is not None:
            registry.tag(champion, {"leap.withdrawn": "true", "leap.decision": "taken back by a rollback"})
            instead = f" in place of version {champion.version}"
        refused = "" if previous.tags.get("leap.passed") == "true" else ", though the gate refuses it"
        registry.crown(previous, f"made champion again by a rollback{instead}{refused}")
        return registry.standing(previous.version)


def history_text(versions: list[Registered]) -> str:
    """Return the history for a terminal: a line a version, then who became champion when."""
    if not versions:
        return "nothing is registered"
    head = ("version", "model", "aliases", "passes", "primary metric", "registered", "decision")
    rows = [
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
    events = sorted((at, f"version {item.version} {what}") for item in versions for at, what in item.events)
    return "\n".join([Grid(head, rows, words=7).text(), "", *(f"{at}  {what}" for at, what in events)])


class _Registry:
    def __init__(self, tracking: Tracking) -> None:
        assert tracking.client is not None
        self._client = tracking.client
        self.name = tracking.settings.registered_model

    def versions(self) -> list[ModelVersion]:
        """Return every version with its tags and aliases of now, the newest first."""
        registered = self._client.search_model_versions(f"name = '{self.name}'")
        held = self._client.get_registered_model(self.name).aliases if registered else {}
        for version in registered:  # the search leaves them out
            version.aliases = [alias for alias, number in held.items() if str(number) == str(version.version)]
        return sorted(registered, key=lambda version: -int(version.version))

    def find(self, identity: dict[str, str]) -> ModelVersion | None:
        return next((item for item in reversed(self.versions()) if identity.items() <= item.tags.items()), None)

    def holder(self, alias: str) -> ModelVersion | None:
        return next((version for version in self.versions() if alias in version.aliases), None)

    def register(self, logged: Logged) -> ModelVersion:
        try:
            self._client.create_registered_model(self.name, description=ABOUT)
        except StoreError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self._client.create_model_version(
            self.name,
            source=f"models:/{logged.model}",
            run_id=logged.run,
            tags=logged.identity,
            model_id=logged.model,
        )

    def describe(self, version: ModelVersion, verdict: dict[str, Any], data: dict[str, str]) -> None:
        passed = sum(check["passed"] for check in verdict["checks"])
        summary = f"{verdict['variant']}-{verdict['seed']}: {passed} of {len(verdict['checks'])} checks pass"
        reasons = "\n".join(f"- {mark(check)} {check['name']}: {check['reason']}" for check in verdict["checks"])
        text = f"{summary}\n\n{reasons}"
        if version.description != text:
            self._client.update_model_version(self.name, version.version, text)
        compared = {
            "leap.checkpoint": verdict["checkpoint"],
            "leap.primary_metric": verdict["primary_metric"]["metric"],
            "leap.primary_value": json.dumps(verdict["primary_metric"]["value"]),
            "leap.primary_data": sha256_of_json(data),
            "leap.passed": json.dumps(verdict["passed"] and verdict["role"] is None),
        }
        if any(version.tags.get(key) != value for key, value in compared.items()):
            self.tag(version, {"leap.decision": ""})  # to be decided again, also if a kill comes before that
        self.tag(version, {"leap.verdict": summary, **compared})

    def settle(self, version: ModelVersion) -> None:
        """Give the aliases to whom they belong now that a version was described."""
        self.repair()
        champion = self.holder(CHAMPION)
        if version.tags.get("leap.withdrawn") == "true":
            return
        if champion is None:
            self.crown(version, "became champion: there was none")
        elif champion.version == version.version:
            if not version.tags["leap.decision"]:
                self.tag(version, {"leap.decision": _events(version)[-1][1]})
        else:
            better, reason = compare(version.tags, champion.tags, int(champion.version))
            if better:
                self.crown(version, f"became champion: {reason}")
            else:
                self.tag(version, {"leap.decision": f"stays out: {reason}"})
                self._place_candidate(version)

    def crown(self, version: ModelVersion, decision: str) -> None:
        """Make the present champion `previous`, then a version champion."""
        champion = self.holder(CHAMPION)
        replaced = {} if champion is None else {"leap.replaces": str(champion.version)}
        events = _events(version)
        if not events or events[-1][1] != decision:
            events.append((datetime.now(UTC).isoformat(timespec="milliseconds"), decision))
        self.tag(version, {**replaced, "leap.events": json.dumps(events)})
        if champion is not None:
            self.alias(PREVIOUS, champion.version)
        self.alias(CHAMPION, version.version)
        self.drop(CANDIDATE, version)
        self.tag(version, {"leap.decision": decision})

    def repair(self) -> None:
        """Undo half a change of champions, which a kill left: `previous` is never the champion itself."""
        champion = self.holder(CHAMPION)
        if champion is None:
            return
        self.drop(CANDIDATE, champion)
        if PREVIOUS in champion.aliases:
            before = champion.tags.get("leap.replaces", champion.version)
            if str(before) == str(champion.version):
                self.drop(PREVIOUS, champion)
            else:
                self.alias(PREVIOUS, before)

    def standing(self, number: str) -> Standing:
        return next(
            Standing(item.version, item.aliases, item.decision)
            for item in self.history()
            if str(item.version) == str(number)
        )

    def history(self) -> list[Registered]:
        return [
            Registered(
                version=int(version.version),
                aliases=sorted(version.aliases),
                decision=version.tags.get("leap.decision") or "registered",
                name=f"{version.tags.get('leap.variant')}-{version.tags.get('leap.seed')}",
                primary=f"{version.tags.get('leap.primary_metric')} {version.tags.get('leap.primary_value')}",
                passed=version.tags.get("leap.passed") == "true",
                created=datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat("T", "seconds"),
                events=_events(version),
            )
            for version in self.versions()
        ]

    def alias(self, alias: str, number: str) -> None:
        self._client.set_registered_model_alias(self.name, alias, str(number))

    def drop(self, alias: str, version: ModelVersion) -> None:
        holder = self.holder(alias)
        if holder is not None and holder.version == version.version:
            self._client.delete_registered_model_alias(self.name, alias)

    def tag(self, version: ModelVersion, tags: dict[str, str]) -> None:
        for key, value in tags.items():
            if version.tags.get(key) != value:
                self._client.set_model_version_tag(self.name, version.version, key, value)
                version.tags[key] = value

    def _place_candidate(self, version: ModelVersion) -> None:
        """Make the newest version that passes and was never champion `candidate`."""
        newest, previous = self.holder(CANDIDATE), self.holder(PREVIOUS)
        if previous is not None and previous.version == version.version:
            return
        if newest is None or int(newest.version) < int(version.version):
            self.alias(CANDIDATE, version.version)


def _events(version: ModelVersion) -> list[tuple[str, str]]:
    return [(at, what) for at, what in json.loads(version.tags.get("leap.events", "[]"))]


@contextmanager
def _registry(tracking: Tracking) -> Iterator[_Registry]:
    try:
        with tracking.locked("registry"):
            yield _Registry(tracking)
    except StoreError as error:
        raise UserError(
            f"the registry at {without_passwords(tracking.uri)} cannot be used: {error}; "
            "start the server or correct tracking.uri, and run `dvc repro` again"
        ) from None
