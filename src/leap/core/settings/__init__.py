"""The settings: one reader, which sees params.yaml exactly as DVC does and validates it whole.

All mistakes are reported at once, each with its key, before any work.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from leap.core.errors import UserError
from leap.core.passwords import without_passwords
from leap.core.settings.base import Block, Name, Seeds
from leap.core.settings.contradictions import block, contradictions, variant_contradictions
from leap.core.settings.data import DataSettings, ValidationSettings
from leap.core.settings.evaluation import EvaluationSettings, LatencySettings, TrackingSettings
from leap.core.settings.gate import GateSettings
from leap.core.settings.monitoring import MonitoringSettings
from leap.core.settings.sources import ModelSource, PairSource, RetrievalSource
from leap.core.settings.studies import Study
from leap.core.settings.training import ExitSettings, Loss, StudentSettings, TrainSettings
from leap.core.settings.variant import Variant

__all__ = ["Settings", "VariantSettings", "parse_settings", "read_settings"]

Item = TypeVar("Item")
# The blocks that a variant may change.
BLOCKS = ("student", "loss", "train", "exit")


class VariantSettings(Block):
    """A variant's own settings: the shared blocks with the variant's changes applied."""

    name: str
    description: str
    checkpoint: ModelSource | None
    student: StudentSettings
    loss: Loss
    train: TrainSettings
    exit: ExitSettings

    def training(self) -> dict[str, Any]:
        """Return what the weights are made by, as JSON: all but the exit settings and the words."""
        return self.model_dump(mode="json", exclude={"name", "description", "exit"})


class Settings(Block):
    """params.yaml."""

    profile: str
    seeds: Seeds
    data: DataSettings
    validation: ValidationSettings
    similarity: Annotated[dict[Name, PairSource], Field(min_length=1)]
    retrieval: Annotated[dict[Name, RetrievalSource], Field(min_length=1)]
    teacher: ModelSource
    student: StudentSettings
    loss: Loss
    train: TrainSettings
    exit: ExitSettings
    variants: Annotated[dict[Name, Variant], Field(min_length=1)]
    studies: dict[Name, Study]
    evaluation: EvaluationSettings
    latency: LatencySettings
    gate: GateSettings
    monitoring: MonitoringSettings
    tracking: TrackingSettings

    @property
    def experiment(self) -> str:
        """Return the name of MLflow's experiment: the data's own, like the registered model's."""
        return self.tracking.experiment or f"leap-{self.data.name}"

    @property
    def registered_model(self) -> str:
        """Return the name of MLflow's registered model: the data's own, under no other's champion."""
        return self.gate.registered_model or re.sub(r"[^\w.-]+", "-", f"leap-{self.data.name}")

    def variant(self, name: str) -> VariantSettings:
        """Return one variant, its changes merged into the shared blocks; refuse an unknown name."""
        return self._resolve(name, _select(self.variants, "variant", name))

    def pair_set(self, name: str) -> PairSource:
        """Return one set of scored pairs; refuse an unknown name."""
        return _select(self.similarity, "set of pairs", name)

    def collection(self, name: str) -> RetrievalSource:
        """Return one retrieval collection; refuse an unknown name."""
        return _select(self.retrieval, "collection", name)

    def study(self, name: str) -> Study:
        """Return one study; refuse an unknown name."""
        return _select(self.studies, "study", name)

    def study_variant(self, study: str, name: str) -> VariantSettings:
        """Return one variant of a study: the shared blocks, then the study's, then its own."""
        chosen = self.study(study)
        return self._resolve(name, chosen.variants[name], chosen)

    def _resolve(self, name: str, variant: Variant, study: Study | None = None) -> VariantSettings:
        blocks = _laid_over(self.model_dump(include=set(BLOCKS)), study.model_dump() if study else {})
        own = variant.model_dump()
        about = {"name": name, "description": variant.description, "checkpoint": own["checkpoint"]}
        return VariantSettings.model_validate(about | _laid_over(blocks, own))

    def names_a_hub(self) -> bool:
        """Return whether any setting names a hub, the only case in which the network may be used."""

        def kinds(value: Any) -> bool:
            if isinstance(value, dict):
                return value.get("kind") == "hub" or any(kinds(item) for item in value.values())
            return isinstance(value, list) and any(kinds(item) for item in value)

        return kinds(self.model_dump(mode="json"))


def _select(block: dict[str, Item], kind: str, name: str) -> Item:
    if name not in block:
        raise UserError(f"no {kind} {name!r} in params.yaml: it has {', '.join(block) or 'none'}")
    return block[name]


def _laid_over(blocks: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: merge(blocks.get(key), changes.get(key) or {}) for key in BLOCKS}


def merge(base: Any, patch: Any) -> Any:
    """Lay `patch` over `base`: mappings merge, null removes a key, all else replaces (RFC 7386).

    A mapping whose `kind` changes is replaced whole: the old kind's keys mean nothing to the new one.
    """
    if not isinstance(patch, dict) or not isinstance(base, dict):
        return patch
    if "kind" in patch and patch["kind"] != base.get("kind"):
        return patch
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def read_settings(path: Path) -> Settings:
    """Read and validate the settings file; UserError if it is missing or not YAML, or lists all its mistakes."""
    try:
        with path.open(encoding="utf-8") as file:
            # The same call as DVC's (dvc/utils/serialize/_yaml.py), so 5e-5 is a number for both.
            content = YAML(typ="safe").load(file)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: `leap profile embedded` writes it") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    return parse_settings(content, str(path))


def parse_settings(content: Any, origin: str) -> Settings:
    """Validate settings that were read from `origin`, variants too; UserError lists every mistake by its key."""
    mistakes: list[str] = []
    settings = None
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        mistakes += _messages(error, content)
    except RecursionError:
        mistakes.append("nested too deeply")
    if isinstance(content, dict):
        mistakes += [*contradictions(content), *_variant_mistakes(content)]
    if settings is None or mistakes:
        lines = [f"  - {line}" for line in dict.fromkeys(mistakes)]
        raise UserError("\n".join([f"{origin} has {len(lines)} mistake(s):", *lines]))
    return settings


def _variant_mistakes(content: dict[str, Any]) -> Iterator[str]:
    """The mistakes of each variant with its changes applied, also where the rest has mistakes of its own.

    A mistake that the blocks below it have too is theirs and not listed again.
    """
    yield from variant_contradictions(_laid_over(content, {}), ready=False)
    listed = {"": _resolved_mistakes(content, {})}
    for key, below, variant in _all_variants(content):
        listed[key] = _resolved_mistakes(below, variant)
        known = [*listed[""], *listed.get(key.rpartition(".variants.")[0], [])]
        yield from (f"{key}.{line}" for line in listed[key] if line not in known)


def _all_variants(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every variant, of the pipeline and of the studies: its key, the blocks below it, itself.

    A study's own blocks come first, as a variant without changes.
    """
    places = [("", content, block(content, "variants"))]
    for study, changes in block(content, "studies").items():
        if isinstance(changes, dict):
            below = _laid_over(content, changes)
            yield f"studies.{study}", below, {}
            places.append((f"studies.{study}.", below, block(changes, "variants")))
    for place, below, variants in places:
        for name, variant in variants.items():
            if isinstance(variant, dict):
                yield f"{place}variants.{name}", below, variant


def _resolved_mistakes(below: dict[str, Any], variant: dict[str, Any]) -> list[str]:
    checkpoint, blocks = variant.get("checkpoint"), _laid_over(below, variant)
    resolved = {"name": "", "description": "", "checkpoint": checkpoint, **blocks}
    mistakes = variant_contradictions(blocks, ready=checkpoint is not None)
    try:
        VariantSettings.model_validate(resolved)
    except ValidationError as error:
        return _messages(error, resolved) + mistakes
    return mistakes


def _messages(error: ValidationError, content: Any) -> list[str]:
    lines = []
    for item in error.errors():
        parts = _key(item["loc"], content)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        elif item["type"].startswith("union_tag"):
            parts.append("kind")
        elif item["type"] != "missing" and not isinstance(item["input"], dict | Block):
            message += without_passwords(f" (found {item['input']!r})")
        lines.append(f"{'.'.join(parts)}: {message}" if parts else message)
    return lines


def _key(place: tuple[int | str, ...], content: Any) -> list[str]:
    """The key of a mistake as the file has it: pydantic's place also names the kind of a block, once."""
    parts = []
    named = None
    for part in place:
        if isinstance(content, dict) and content is not named and content.get("kind") == part:
            named = content
            continue
        if part == "[key]":  # pydantic's word for a mistake in the key itself
            continue
        parts.append(str(part))
        if isinstance(content, dict):
            content = content.get(part)
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
        else:
            content = None
    return parts
