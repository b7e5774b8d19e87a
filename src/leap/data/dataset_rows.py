"""Rows by the library `datasets`: a data set of the Hugging Face Hub, or an Arrow folder that it saved."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.hub import UnreachableError, as_user_error, ask_hub
from leap.core.settings.sources import HubFiles

log = logging.getLogger(__name__)

BATCH_ROWS = 4096
# Files that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write next to the Arrow files.
STATE, SPLITS = "state.json", "dataset_dict.json"


def hub_values(source: HubFiles, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Read columns of a data set of the hub, in batches; it is downloaded once, unless it is streamed.

    Raises:
        UserError: the hub, the data set, its commit, configuration, split or columns cannot be had.
    """
    with _as_user_error(source):
        is_reachable = _ask_once(source)
        dataset = _datasets().load_dataset(
            source.repo,
            source.config,
            split=source.split,
            revision=source.revision,
            data_files=source.files and {source.split: source.files},
            streaming=source.streaming,
        )
    # Offline, the library takes whatever commit it has last prepared.
    if not is_reachable and not all(source.revision in file["filename"] for file in dataset.cache_files):
        raise UserError(
            f"{hub_name(source)}: the cache has another commit only, and the hub cannot be reached: connect once"
        )
    yield from _values(dataset, columns, hub_name(source))


def hub_files(source: HubFiles) -> list[str]:
    """Ask the hub for the files of a configuration's split, without fetching them; errors as of `hub_values`."""
    with _as_user_error(source):
        builder = _datasets().load_dataset_builder(
            source.repo,
            source.config,
            revision=source.revision,
            data_files=source.files and {source.split: source.files},
        )
    files = builder.config.data_files or {}
    if source.split not in files:
        raise UserError(
            f"{hub_name(source)}: no split {source.split!r}: set `split` to one of {', '.join(map(str, files))}"
        )
    return [str(file).rpartition(f"@{source.revision}/")[2] for file in files[source.split]]


def hub_name(source: HubFiles) -> str:
    parts = ", ".join(source.files or [part for part in (source.config, source.split) if part])
    return f"data set {source.repo} at commit {source.revision[:7]} ({parts})"


def is_arrow_folder(folder: Path) -> bool:
    """Tell whether `datasets` saved a folder by `save_to_disk`."""
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def arrow_values(folder: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Read columns of an Arrow folder, in batches.

    Raises:
        UserError: it holds several splits, is damaged, or lacks a column.
    """
    if (folder / SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
        raise UserError(f"{folder} holds the splits {', '.join(splits)}: name one of these folders")
    import pyarrow as pa

    try:
        dataset = _datasets().load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise UserError(f"{folder} is not a readable Arrow folder ({_line(error)}): save it again") from None
    yield from _values(dataset, columns, str(folder))


def _values(dataset: Any, columns: Sequence[str], name: str) -> Iterator[tuple[Any, ...]]:
    for table in dataset.with_format("arrow").iter(BATCH_ROWS):
        missing = [column for column in columns if column not in table.column_names]
        if missing:
            raise UserError(
                f"{name} has no column {', '.join(missing)}: its columns are {', '.join(table.column_names)}; set "
                "`columns` to those to read"
            )
        yield from zip(*(table.column(column).to_pylist() for column in columns), strict=True)


def _ask_once(source: HubFiles) -> bool:
    """Work from the cache where the hub does not answer at once; the library would retry for a minute a file."""
    import huggingface_hub

    library = _datasets()
    try:
        ask_hub(source.repo, source.revision, "dataset")
    except UnreachableError:
        if source.streaming:
            raise
        log.info("%s: the hub does not answer, a copy in the cache is looked for", hub_name(source))
        library.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
        return False
    return True


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError("this needs the library datasets: pip install 'leap-pipeline[pipeline]'") from None
    return datasets


@contextmanager
def _as_user_error(source: HubFiles) -> Iterator[None]:
    from datasets.exceptions import DatasetsError

    try:
        with as_user_error(hub_name(source)):
            yield
    except (DatasetsError, ValueError, KeyError) as error:
        raise UserError(
            f"{hub_name(source)}: {_line(error)}; check repo, revision, config, split and files"
        ) from None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
