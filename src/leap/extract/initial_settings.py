"""`leap init FOLDER`: settings for the files that a folder holds, and what of them would not be trained on."""

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import whole_file
from leap.core.sample_sizes import fewest_to_calibrate, surely_held_out
from leap.core.settings.sources import LocalCollection, LocalFiles
from leap.core.source_code import PACKAGE
from leap.data.beir import collection_files
from leap.data.cleaning import clean, split_sentences
from leap.data.dataset_rows import is_arrow_folder
from leap.data.tables import delimiter_of, file_ending, is_hidden, open_text, source_rows

# Rows of a file that are looked at.
HEAD = 2000
MIN_CHARACTERS = 20
# The longest sentence that is trained on, of those a user would choose among.
LENGTHS = (100, 200, 300, 500)
# Up to so many characters a sentence is within the embedded profile's train.max_length, 64 tokens.
SHORT = 200
# Below this share nothing is said of what would be dropped.
LEAST_SHOWN = 0.005
BUNDLED = PACKAGE / "resources" / "similarity" / "pairs.csv"
# What the bundled pairs are called in a folder that has none.
COPIED = "software_pairs.csv"
SCORES = ("score", "similarity", "label", "similarity_score", "relatedness_score", "rating")


@dataclass
class Found:
    """Contents of a folder, by their use.

    sources: by name the settings of a source of text.
    pairs: by name the settings of a set of scored pairs.
    collections: by name the settings of a retrieval collection.
    texts: those that were looked at.
    rows: about how many texts there are.
    passed_over: files that are none of these, with the reason.
    lacks_pairs: no file holds scored pairs, and `pairs` names a copy of the bundled ones that is to be made.
    """

    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    pairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    rows: int = 0
    passed_over: dict[str, str] = field(default_factory=dict)
    lacks_pairs: bool = False


def look_at(folder: Path) -> Found:
    """Read the first rows of every file of a folder, and say what it is: text, scored pairs, a collection.

    Raises:
        UserError: it is no folder, or holds no text to train on.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name the one that holds your files")
    found = Found()
    taken: list[Path] = []
    for place in [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]:
        name = place.relative_to(folder).as_posix()
        if is_arrow_folder(place):
            taken.append(place)
            _look_at_file(found, place, folder)
        elif place != folder and not any(place.is_relative_to(other) for other in taken):
            try:
                collection_files(LocalCollection(kind="local", path=name), folder)
            except UserError:
                continue
            taken.append(place)
            found.collections[_name(place.name, found.collections)] = {"kind": "local", "path": name}
    for file in sorted(folder.rglob("*")):
        inside = any(file.is_relative_to(other) for other in taken)
        if file.is_file() and not inside and not is_hidden(file, folder):
            _look_at_file(found, file, folder)
    if not found.sources:
        seen = "; ".join(f"{name}: {why}" for name, why in found.passed_over.items()) or "nothing"
        raise UserError(f"{folder} holds no text to train on ({seen}): docs/formats.md says which files are read")
    if not found.pairs:
        found.lacks_pairs = True
        found.pairs["software_pairs"] = {"kind": "local", "path": COPIED}
    return found


def copy_bundled_pairs(folder: Path) -> None:
    """Put the bundled pairs of software sentences into a folder that has no pairs of its own."""
    with whole_file(folder / COPIED) as temporary:
        shutil.copyfile(BUNDLED, temporary)


def _look_at_file(found: Found, path: Path, folder: Path) -> None:
    name = path.relative_to(folder).as_posix()
    try:
        columns = column_names(path)
        rows = _head(path, columns, folder)
    except UserError as error:
        found.passed_over[name] = str(error).removeprefix(f"{path}").lstrip(": ")
        return
    values = dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else {}
    texts = [column for column in columns if _is_text(values.get(column, ()))]
    score = next((column for column in columns if column.lower() in SCORES), None)
    if len(texts) >= 2 and score is not None and (task := _task(values.get(score, ()))):
        chosen = {"sentence1": texts[0], "sentence2": texts[1], "score": score}
        block = {"kind": "local", "path": name, "task": task, "columns": chosen}
        found.pairs[_name(path.name, found.pairs)] = block
    elif texts:
        found.sources[_name(path.name, found.sources)] = {"kind": "local", "path": name, "columns": texts}
        sample = [clean(value) for column in texts for value in values[column] if value]
        found.texts += sample
        whole = _size(path) / max(1, sum(map(len, sample))) if len(rows) == HEAD else 1.0
        found.rows += int(len(sample) * max(1.0, whole))
    else:
        found.passed_over[name] = f"no column of sentences among {', '.join(columns)}"


def column_names(path: Path) -> list[str]:
    """Return the columns of a file as its schema, its header or its first record names them; or UserError."""
    ending = file_ending(path)
    try:
        if is_arrow_folder(path):
            return list(json.loads((path / "dataset_info.json").read_text())["features"])
        if ending == ".parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        if ending in (".csv", ".tsv"):
            with open_text(path) as lines:
                header = lines.readline()
            return next(csv.reader([header], delimiter="\t" if ending == ".tsv" else delimiter_of(header)), [])
        if ending in (".jsonl", ".ndjson", ".json"):
            with open_text(path) as lines:
                first = next((line for line in lines if line.strip(" \r\n[")), "{}")
            return list(json.loads(first.strip().strip("[],")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not readable ({error})") from None
    if ending == ".txt":
        return ["text"]
    raise UserError(f"{path}: no form that is read")


def _head(path: Path, columns: Sequence[str], folder: Path) -> list[tuple[Any, ...]]:
    source = LocalFiles(kind="local", path=path.relative_to(folder).as_posix())
    return [row.values for row in islice(source_rows(source, columns, folder), HEAD)]


def _is_text(values: Sequence[Any]) -> bool:
    words = [value for value in values if isinstance(value, str) and len(value.split()) >= 3]
    return len(words) > len(values) / 2


def _task(values: Sequence[Any]) -> str | None:
    """`duplicates` for 0 and 1, `similarity` for numbers from 0 to 5, null for anything else."""
    try:
        numbers = {float(value) for value in values}
    except (TypeError, ValueError, OverflowError):
        return None
    if not numbers or not all(0 <= number <= 5 for number in numbers):
        return None
    return "duplicates" if numbers <= {0.0, 1.0} else "similarity"


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]))


def _name(text: str, taken: dict[str, Any]) -> str:
    stem = text.lower().split(".")[0]
    plain = "".join(character if character.isascii() and character.isalnum() else "_" for character in stem)
    name = plain.strip("_")[:40] or "texts"
    name = name if name[0].isalpha() else f"set_{name}"
    while name in taken:
        name += "_2"
    return name


def changes_for(found: Found, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return changes to the embedded profile, and lines that say what was found and what would be dropped."""
    sentences = [part for text in found.texts for part in split_sentences(text)]
    long = [length for length in LENGTHS if sum(len(part) > length for part in sentences) <= 0.02 * len(sentences)]
    most = long[0] if long else LENGTHS[-1]
    fit = sum(MIN_CHARACTERS < len(part) <= most for part in sentences) / max(1, len(sentences))
    usable = int(found.rows * len(sentences) / max(1, len(found.texts)) * fit)
    wanted = min(30_000, max(100, int(usable * 0.7)))
    lines = [
        f"text: {', '.join(found.sources)}; some {found.rows:,} texts, {len(found.texts):,} of them looked at",
        f"scored pairs: none; bundled ones, of software, are copied to {folder / COPIED}: put your own there"
        if found.lacks_pairs
        else f"scored pairs: {', '.join(found.pairs)}",
        f"collections: {', '.join(found.collections) or 'none: one of installed docstrings is used'}",
        *_count_dropped(found.texts, sentences, most),
        *(f"{name} is passed over: {why}" for name, why in found.passed_over.items()),
    ]
    data: dict[str, Any] = {
        "folder": str(folder),
        "max_characters": most,
        "max_sentences": wanted,
        "sources": {"docstrings": None, **found.sources},
    }
    # Half of the sample must do: duplicates and evaluation texts go as well.
    changes: dict[str, Any] = {
        "data": data,
        "validation": {"min_rows": max(1, wanted // 2)},
        "similarity": {"software": None, **found.pairs},
        "evaluation": {"primary_set": next(iter(found.pairs))},
    }
    if most > SHORT:
        changes["train"] = {"max_length": 128}
    if surely_held_out(wanted, 0.25) < fewest_to_calibrate(0.05, 0.95, 0.8):
        changes["exit"] = {"calibration": None}
        lines.append("too few sentences to calibrate exits on: exit.calibration is null")
    if found.collections:
        changes["retrieval"] = {"docstrings": None, **found.collections}
    return changes, lines


def _count_dropped(texts: Sequence[str], sentences: Sequence[str], most: int) -> Iterator[str]:
    whole = sum(len(text) > most for text in texts)
    if whole >= LEAST_SHOWN * len(texts):
        yield (
            f"{whole / len(texts):.0%} of the texts are longer than data.max_characters {most}: they are split "
            "into sentences (data.split)"
        )
    for count, why in (
        (sum(len(part) > most for part in sentences), f"longer than {most} characters (data.max_characters)"),
        (
            sum(len(part) <= MIN_CHARACTERS for part in sentences),
            f"not above {MIN_CHARACTERS} (data.min_characters)",
        ),
    ):
        if count >= LEAST_SHOWN * len(sentences):
            yield f"{count / len(sentences):.0%} of the sentences would be dropped: {why}"
