"""`leap retrofit`: reads the sentences, trains, and measures what the model gives."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from leap.core.files import must_be_new
from leap.exits import LeapEncoder
from leap.exits.calibrate.calibrate_folder import read_column
from leap.latency.retrofit_table import measure_retrofit, table
from leap.models.find import find_model
from leap.train.retrofit import Training, hold_out, retrofit


def run_retrofit(
    model: str,
    sentences: Path,
    output: Path,
    column: str | None,
    options: Mapping[str, Any],
    query_layer: int | None,
    device: str,
    seed: int,
) -> str:
    """Retrofit a model and return the table by layer; `options` are Training's, null for its choice.

    Raises:
        UserError: as `leap.train.retrofit.retrofit`, or the file of sentences cannot be read.
        KeyboardInterrupt: SIGINT or SIGTERM came; the state is saved.
    """
    must_be_new(output)
    folder = find_model(model)
    training_text, queries, documents = hold_out(read_column(sentences, column))
    chosen = {key: value for key, value in options.items() if value is not None}
    training = replace(Training.of(device), **chosen)
    retrofit(folder, training_text, output, training, query_layer=query_layer, device=device, seed=seed)
    return table(measure_retrofit(LeapEncoder(output, device), LeapEncoder(folder, device), queries, documents))
