"""Look for what the settings name: files and columns on this machine, repositories on the hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from leap.core.errors import UserError
from leap.core.hub import ask_hub
from leap.core.settings import Settings
from leap.core.settings.sources import (
    HubCollection,
    HubFiles,
    HubModel,
    LocalCollection,
    ModelSource,
    PackageCollection,
    PackageText,
)
from leap.data.beir import collection_files, read_judgements, read_texts
from leap.data.dataset_rows import hub_files
from leap.data.pairs import scored_pairs
from leap.data.tables import source_rows
from leap.models.find import HUB_FILES
from leap.models.locate import locate

log = logging.getLogger(__name__)

# Rows of a file that are read to see whether it is what the settings say.
HEAD = 100
# Files from which a model's tokenizer can be read.
TOKENIZERS = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
)


class Asked(NamedTuple):
    key: str
    repo: str
    files: int
    size: int
    license: str | None


class _Mistakes:
    """The missing inputs, a line each; those of studies alone stop nothing."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.of_studies: list[str] = []

    @contextmanager
    def noted(self, key: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            (self.of_studies if key.startswith("studies.") else self._lines).append(f"{key}: {error}")

    def refuse(self, words: str) -> None:
        if self._lines:
            listed = "\n".join(f"  - {line}" for line in self._lines)
            raise UserError(f"{words.format(len(self._lines))}:\n{listed}")


def check_inputs(settings: Settings) -> list[str]:
    """Open the first rows of every local file, and look for every installed package and local model.

    Returns:
        what only studies lack, a line each: `dvc repro` runs without it.

    Raises:
        UserError: lists everything that is missing or is not what the settings say, each with its key.
    """
    folder, mistakes = Path(settings.data.folder), _Mistakes()
    for name, source in settings.data.sources.items():
        with mistakes.noted(f"data.sources.{name}"):
            if isinstance(source, PackageText):
                _are_installed(source.packages)
            elif not isinstance(source, HubFiles):
                for row in islice(source_rows(source, source.columns, folder), HEAD):
                    for place, column in enumerate(source.columns):
                        row.text(place, column)
    for name, pairs in settings.similarity.items():
        with mistakes.noted(f"similarity.{name}"):
            if not isinstance(pairs, HubFiles):
                list(islice(scored_pairs(pairs, folder), HEAD))
    for name, collection in settings.retrieval.items():
        with mistakes.noted(f"retrieval.{name}"):
            if isinstance(collection, PackageCollection):
                _are_installed(collection.packages)
            elif isinstance(collection, LocalCollection):
                _read_collection(collection, folder)
    for key, model in _models(settings):
        with mistakes.noted(key):
            if not isinstance(model, HubModel):
                locate(model)
    mistakes.refuse("the settings are right, but {} of their inputs are not")
    return mistakes.of_studies


def ask_for_inputs(settings: Settings) -> tuple[list[Asked], list[str]]:
    """Ask the hub for the files, sizes and licences of everything that the settings name there; fetch nothing.

    Returns:
        What the hub has, and what only studies lack, a line each: they leave it out.

    Raises:
        UserError: lists every repository, commit, configuration, split or file that the hub does not have.
    """
    mistakes, answers = _Mistakes(), []
    for key, source in _on_the_hub(settings):
        with mistakes.noted(key):
            repository = ask_hub(
                source.repo, source.revision, "model" if isinstance(source, HubModel) else "dataset"
            )
            wanted = _fetched_files(source, list(repository.files))
            sizes = [size for name, size in repository.files.items() if name in wanted]
            answers.append(Asked(key, source.repo, len(sizes), sum(sizes), repository.license))
    mistakes.refuse("the hub lacks {} of the settings' inputs")
    return answers, mistakes.of_studies


def _on_the_hub(settings: Settings) -> Iterator[tuple[str, HubFiles | HubCollection | HubModel]]:
    blocks: list[tuple[str, Any]] = [
        (f"data.sources.{name}", each) for name, each in settings.data.sources.items()
    ]
    blocks += [(f"similarity.{name}", each) for name, each in settings.similarity.items()]
    blocks += [(f"retrieval.{name}", each) for name, each in settings.retrieval.items()]
    for key, source in [*blocks, *_models(settings)]:
        if isinstance(source, HubFiles | HubCollection | HubModel):
            yield key, source


def _models(settings: Settings) -> Iterator[tuple[str, ModelSource]]:
    seen: list[Any] = []

    def unseen(key: str, model: Any) -> Iterator[tuple[str, ModelSource]]:
        if hasattr(model, "kind") and model.kind in ("hub", "local", "package") and model not in seen:
            seen.append(model)
            yield key, model

    yield from unseen("teacher", settings.teacher)
    for name in settings.variants:
        variant = settings.variant(name)
        yield from unseen(f"variants.{name}.checkpoint", variant.checkpoint)
        if variant.checkpoint is None:
            yield from unseen("student.start", variant.student.start)
    for study, block in settings.studies.items():
        for name, each in block.variants.items():
            yield from unseen(f"studies.{study}.variants.{name}.checkpoint", each.checkpoint)
            yield from unseen(f"studies.{study}.variants.{name}.teacher", each.teacher)


def _fetched_files(source: HubFiles | HubCollection | HubModel, there: list[str]) -> set[str]:
    from fnmatch import fnmatch

    if isinstance(source, HubFiles):
        return set(hub_files(source))
    if isinstance(source, HubCollection):
        patterns: tuple[str, ...] = (source.corpus, source.queries, source.qrels)
        for pattern in patterns:
            count = sum(fnmatch(name, pattern) for name in there)
            if count != 1:
                raise UserError(f"{source.repo} has {count} files {pattern!r}, expected one: correct the pattern")
        return {name for name in there if any(fnmatch(name, pattern) for pattern in patterns)}
    if "config.json" not in there or not any(name.endswith(".safetensors") for name in there):
        raise UserError(
            f"{source.repo} at commit {source.revision} has no config.json with safetensors, the "
            "one form of weights that is read"
        )
    if not set(TOKENIZERS) & set(there):
        raise UserError(
            f"{source.repo} at commit {source.revision} has no tokenizer ({', '.join(TOKENIZERS)}): choose "
            "another model"
        )
    return {name for name in there if any(fnmatch(name, pattern) for pattern in HUB_FILES)}


def _read_collection(source: LocalCollection, folder: Path) -> None:
    corpus, queries, qrels = collection_files(source, folder)
    read_texts(corpus, HEAD)
    read_texts(queries, HEAD)
    read_judgements(qrels, HEAD)


def _are_installed(packages: list[str]) -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    for package in packages:
        try:
            distribution(package)
        except PackageNotFoundError:
            raise UserError(f"package {package!r} is not installed: `pip install {package}`") from None
