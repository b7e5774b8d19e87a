"""The docstrings of installed packages, read as text: the files are parsed with `ast`, never imported."""

import ast
import gc
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from leap.core.errors import UserError
from leap.core.progress import bar
from leap.data.cleaning import split_sentences
from leap.extract.prose import is_prose, paragraphs

log = logging.getLogger(__name__)

# Not the package's own documentation: tests, copies of other packages, generated code.
_SKIPPED = re.compile(
    r"(?:^|/)(?:_?tests?|testing|_?vendor(?:ed)?|externals?|third_party|protos?|_generated)(?:/|$)"
    r"|(?:^|/)(?:test_\w+|\w+_tests?|conftest|setup|\w+_pb2\w*)\.py$"
)


@dataclass(frozen=True)
class Docstring:
    """The docstring of a module, class or function.

    Attributes:
        name: qualified with the module's, for example `numpy.linalg.norm`.
        summary: its first sentence, "" where that is not prose.
        sentences: all its sentences that read as English, the summary included, in order.
    """

    name: str
    summary: str
    sentences: tuple[str, ...]


def read_docstrings(packages: Sequence[str]) -> list[Docstring]:
    """Read the docstrings of installed distributions, by package in the order given, then by file and place.

    The result depends on the installed versions only, not on the order of a directory listing.

    Raises:
        UserError: a package is not installed or has no Python files.
    """
    docstrings: list[Docstring] = []
    for package in bar(packages, desc="docstrings", unit="package"):
        docstrings += _read_package(package)
    return docstrings


@cache  # training text and a retrieval collection name the same packages
def _read_package(package: str) -> tuple[Docstring, ...]:
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise UserError(
            f"package {package!r} is not installed, its docstrings are a source of text: "
            f"`pip install {package}`, or leave it out of the settings"
        ) from None
    files = _python_files(installed)
    if not files:
        raise UserError(
            f"package {package!r} lists no Python files (an editable install does not): "
            f"`pip install --force-reinstall {package}`, or leave it out of the settings"
        )
    collecting = gc.isenabled()
    gc.disable()  # an ast is a million small objects without a cycle: collecting costs a third of the time
    try:
        return tuple(item for file in files for item in _read_file(installed, file))
    finally:
        if collecting:
            gc.enable()


def _python_files(installed: Distribution) -> list[str]:
    names = {file.as_posix() for file in installed.files or () if file.suffix == ".py"}
    return sorted(name for name in names if ".." not in name and not _SKIPPED.search(name))


def _read_file(installed: Distribution, file: str) -> Iterator[Docstring]:
    try:
        source = Path(str(installed.locate_file(file))).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        log.debug("%s is left out: %s", file, error)
        return
    if '"""' not in source and "'''" not in source:
        return
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody else's file
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        log.debug("%s is left out: %s", file, error)
        return
    for name, text in _read_tree(tree, module):
        yield _clean(name, text)


def _read_tree(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node)
    if text:
        yield name, text
    if isinstance(node, ast.Module | ast.ClassDef):
        yield from _within(node.body, name)


def _within(body: list[ast.stmt], name: str) -> Iterator[tuple[str, str]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name.startswith("_") and not statement.name.endswith("__"):
                continue  # private: notes among developers rather than documentation
            yield from _read_tree(statement, f"{name}.{statement.name}")
        elif isinstance(statement, ast.If):
            yield from _within(statement.body + statement.orelse, name)
        elif isinstance(statement, ast.Try):
            yield from _within(statement.body + [s for h in statement.handlers for s in h.body], name)


def _clean(name: str, text: str) -> Docstring:
    summary = ""
    sentences: list[str] = []
    for i, paragraph in enumerate(paragraphs(text)):
        parts = split_sentences(paragraph)
        # Many a summary line has no full stop.
        if i == 0 and len(parts) == 1 and parts[0][-1].isalnum():
            parts[0] += "."
        prose = [part for part in parts if is_prose(part)]
        if i == 0 and prose and prose[0] == parts[0]:
            summary = prose[0]
        sentences += prose
    return Docstring(name, summary, tuple(sentences))
