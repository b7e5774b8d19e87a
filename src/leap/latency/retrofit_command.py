"""`leap retrofit`: reads the sentences, trains, and measures what the model gives."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import must_be_new
from leap.exits import LeapEncoder
from leap.exits.calibrate.calibrate_folder import read_column
from leap.exits.calibrate.query_layer import QueryDemand, calibrate_queries, describe_queries
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
    keep: float,
    device: str,
    seed: int,
) -> str:
    """Retrofit a model; return the table by layer and where its queries leave.

    `options` are Training's, null for its choice. Where no query layer is given, queries leave at the earliest one
    that is shown, on the held-out queries, to keep the share `keep` of their nearest documents.

    Raises:
        UserError: as `leap.train.retrofit.retrofit`, or the file of sentences cannot be read.
        KeyboardInterrupt: SIGINT or SIGTERM came; the state is saved.
    """
    must_be_new(output)
    demand = QueryDemand(keep)
    try:
        demand.check()
    except ValueError as error:
        raise UserError(str(error)) from None
    folder = find_model(model)
    training_text, queries, documents = hold_out(read_column(sentences, column))
    chosen = {key: value for key, value in options.items() if value is not None}
    training = replace(Training.of(device), **chosen)
    shown: list[str] = []

    def measure(written: Path) -> None:
        after = LeapEncoder(written, device)
        shown.append(table(measure_retrofit(after, LeapEncoder(folder, device), queries, documents)))
        if query_layer is not None:
            shown.append(f"queries leave at layer {query_layer}, as --query-layer says")
            return
        calibrated = calibrate_queries(after, queries, documents, demand, seed=seed)
        calibrated.save(written)
        shown.append(describe_queries(calibrated)[0])

    retrofit(
        folder,
        training_text,
        output,
        training,
        query_layer=query_layer,
        device=device,
        seed=seed,
        finish=measure,
    )
    return "\n".join(shown)
