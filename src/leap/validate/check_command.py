"""`leap check`: what the settings name is there, what the hub has for them, and what a run takes."""

import json
from collections.abc import Iterator

from leap.core.errors import UserError
from leap.core.hub import fetch
from leap.core.settings import Settings
from leap.core.settings.sources import HubModel
from leap.models.folder import ModelFolder
from leap.models.locate import locate
from leap.validate.estimate import Shape, estimate
from leap.validate.inputs import ask_for_inputs, check_inputs


def check_settings(settings: Settings, ask: bool = False) -> Iterator[str]:
    """Check what valid settings name, and yield what is to be said of it, line by line; `ask` asks the hub too.

    Raises:
        UserError: something is missing, here or on the hub; everything is listed.
    """
    lacking = check_inputs(settings)
    asked, not_there = ask_for_inputs(settings) if ask else ([], [])
    yield from (f"for a study only: {line}" for line in [*lacking, *not_there])
    wide = max((len(item.key) for item in asked), default=0)
    if asked:
        yield f"{'on the hub':{wide}} {'files':>6}{'MB':>9}  licence"
    for key, repo, files, size, license_ in asked:
        yield f"{key:{wide}} {files:6}{size / 1e6:9.1f}  {license_ or 'none named'} ({repo})"
    if settings.train.precision == "bf16":
        if ask or not isinstance(settings.teacher, HubModel):
            yield from _estimate_lines(settings, sum(item.size for item in asked))
        else:  # the teacher's size is in its config.json
            yield "on one NVIDIA L4: `leap check --hub` estimates time, memory and disk"


def _estimate_lines(settings: Settings, downloads: int) -> Iterator[str]:
    source = settings.teacher
    if isinstance(source, HubModel):
        folder = fetch(source.repo, source.revision, ("config.json",), "model", required=("config.json",))
    else:
        folder = ModelFolder.read(locate(source).folder).transformer
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        shape = Shape(
            int(config["num_hidden_layers"]),
            int(config["hidden_size"]),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} does not say how large the teacher is: choose a teacher whose config.json has "
            "num_hidden_layers, hidden_size, intermediate_size and vocab_size"
        ) from None
    cost = estimate(settings, shape, downloads)
    if cost is not None:
        low, high = cost.hours
        yield (
            f"on one NVIDIA L4 (24 GB), estimated: {cost.students} students in {low:.0f} to {high:.0f} hours, "
            f"{cost.memory:.1f} GB of its memory, {cost.disk:.1f} GB of disk and DVC's copy of it"
        )
