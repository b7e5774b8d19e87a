"""`leap doctor`: examines a model, writes the page with the pictures, and says what was found."""

import json
import logging
from pathlib import Path

from leap.core.errors import missing_library
from leap.core.files import must_be_new, whole_file
from leap.doctor.doctor_sentences import sample
from leap.doctor.doctor_text import lines
from leap.doctor.examine import default_rule, examine_model
from leap.exits import LeapEncoder
from leap.models.find import find_model

log = logging.getLogger(__name__)

MARK = '<meta name="generator" content="leap doctor">'


def run_doctor(
    model: str,
    sentences: Path | None,
    column: str | None,
    rule: tuple[float | None, int | None, int | None],
    page: Path,
    as_json: bool,
    device: str,
) -> str:
    """Examine a model and return the text for a terminal, or JSON.

    `rule` is theta, l_min and k; what is null is the model's own. Without matplotlib there is no page.

    Raises:
        UserError: the page would replace another file, or the model or the sentences cannot be used.
    """
    must_be_new(page, mark=MARK)
    chosen = sample(sentences, column)
    encoder = LeapEncoder(find_model(model), device)
    examination = examine_model(model, encoder, chosen, default_rule(encoder).changed(*rule))
    try:
        from leap.doctor.doctor_page import render
    except ModuleNotFoundError as error:  # the verdict needs no picture
        log.warning("no page with pictures: %s", missing_library(error))
        pictures = None
    else:
        with whole_file(page) as part:
            part.write_text(render(examination), encoding="utf-8")
        pictures = str(page)
    if as_json:
        return json.dumps({**examination, "page": pictures}, indent=2, allow_nan=False)
    return "\n".join([*lines(examination), *([f"\npictures: {page}"] if pictures else [])])
