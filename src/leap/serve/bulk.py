"""`leap encode`: a file of texts to a file of vectors, in bounded memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leap.core.errors import UserError
from leap.core.files import must_be_new, whole_file
from leap.core.progress import bar
from leap.exits.calibrate.calibrate_folder import read_column
from leap.exits.leap_encoder import LeapEncoder

# Texts encoded between two writes: enough to sort by length.
CHUNK = 8192
ENDINGS = (".parquet", ".npy")


class Sink(Protocol):
    def write(self, texts: list[str], vectors: NDArray[np.float32], layers: NDArray[np.int64]) -> None: ...


def run_encode(
    name: str, file: Path, target: Path, column: str | None, batch_size: int, device: str, options: dict[str, Any]
) -> dict[str, float]:
    """Encode a column of a file; `options` are those of `LeapEncoder.encode`, null where they are left out.

    Raises:
        UserError: the target exists, or the model, the file or an option cannot be used.
    """
    check_ending(target)
    must_be_new(target)
    texts = read_column(file, column)
    given = {key: value for key, value in options.items() if value is not None}
    if "layer" in given:
        given.setdefault("strategy", "fixed")
    try:
        return encode_file(LeapEncoder(name, device), texts, target, batch_size, **given)
    except ValueError as error:
        raise UserError(str(error)) from None


def encode_file(
    model: LeapEncoder, texts: list[str], target: Path, batch_size: int = 32, **options: Any
) -> dict[str, float]:
    """Encode texts and write them in their order.

    A parquet file has the columns text, vector (a list of D float32) and exit_layer; an npy file is the matrix
    [N, D] float32 alone, which `numpy.load(..., mmap_mode="r")` reads without its size in memory.

    `options` are other arguments of `LeapEncoder.encode`.

    Returns:
        How many texts there were, and their mean exit layer.

    Raises:
        UserError: the target has another ending, or there is no text.
    """
    check_ending(target)
    if not texts:
        raise UserError("there is no text to encode: name a file that has rows")
    total = 0
    with bar(total=len(texts), unit="text") as progress, sink(target, len(texts), model) as out:
        for start in range(0, len(texts), CHUNK):
            part = texts[start : start + CHUNK]
            vectors, layers = model.encode(
                part, batch_size=batch_size, show_progress_bar=False, return_exit_layers=True, **options
            )
            out.write(part, vectors, layers)
            total += int(layers.sum())
            progress.update(len(part))
    return {"texts": len(texts), "expected_layers": total / len(texts)}


def check_ending(target: Path) -> None:
    """Refuse a target of a form that cannot be written."""
    if target.suffix not in ENDINGS:
        raise UserError(f"{target}: name a file that ends in {' or '.join(ENDINGS)}")


@contextmanager
def sink(target: Path, rows: int, model: LeapEncoder) -> Iterator[Sink]:
    """Yield what writes the file, which appears whole or not at all."""
    with whole_file(target) as part:
        if target.suffix == ".npy":
            matrix = np.lib.format.open_memmap(
                part, mode="w+", dtype=np.float32, shape=(rows, model.get_embedding_dimension())
            )
            yield _Matrix(matrix)
            matrix.flush()
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32())), ("exit_layer", pa.int32())])
        with pq.ParquetWriter(part, schema) as writer:
            yield _Table(writer, schema)


class _Matrix:
    def __init__(self, matrix: NDArray[np.float32]) -> None:
        self._matrix, self._row = matrix, 0

    def write(self, texts: list[str], vectors: NDArray[np.float32], layers: NDArray[np.int64]) -> None:
        self._matrix[self._row : self._row + len(vectors)] = vectors
        self._row += len(vectors)


class _Table:
    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer, self._schema = writer, schema

    def write(self, texts: list[str], vectors: NDArray[np.float32], layers: NDArray[np.int64]) -> None:
        import pyarrow as pa

        ends = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=np.int32)
        columns = [
            pa.array([text.encode("utf-8", "replace").decode() for text in texts]),
            pa.ListArray.from_arrays(ends, pa.array(np.ascontiguousarray(vectors).reshape(-1))),
            pa.array(layers.astype(np.int32)),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
