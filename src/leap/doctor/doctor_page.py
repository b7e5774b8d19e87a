"""An examination as one HTML page with its pictures: no file beside it, nothing from the network."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

import leap
from leap.evidence.bounds import ENOUGH_NEIGHBOURS
from leap.report import plots

TEMPLATES = Path(leap.__file__).parent / "doctor" / "templates"


def render(found: dict[str, Any]) -> str:
    """The page.

    Args:
        found: the result of `leap.doctor.examine.examined`.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("doctor.html.j2")
    return template.render(found=found, diagnosis=found["diagnosis"], pictures=pictures(found))


def pictures(found: dict[str, Any]) -> list[tuple[str, Markup]]:
    """Caption and SVG of each picture."""
    name = found["model"].rstrip("/").rpartition("/")[2]
    layers = [{"variant": name, **row} for row in found["diagnosis"]["layers"]]
    leaving = [
        {"variant": rule, "layer": row["layer"], "share": row[f"exit_share_{key}"]}
        for rule, key in (("deployable rule", "converged"), ("oracle", "near_final"))
        for row in layers
    ]
    threshold = found["exit_rule"]["threshold"]
    drawn = [
        (
            f"Similarity of each layer to the last one; the line is theta, {threshold:g}",
            plots.by_layer(layers, "similarity_to_final", "cosine to the last layer", threshold),
        ),
        (
            f"Stability: each layer against the one before, which is what the rule sees; the line is theta, "
            f"{threshold:g}",
            plots.by_layer(layers, "stability", "cosine to the layer before", threshold),
        ),
        (
            f"Neighbours kept (NN@10) at each layer; the line is the checklist's {ENOUGH_NEIGHBOURS:g}",
            plots.by_layer(layers, "nn_at_10", "NN@10", ENOUGH_NEIGHBOURS),
        ),
        ("Where sentences leave", plots.exit_distribution(leaving)),
    ]
    return [(caption, Markup(svg)) for caption, svg in drawn]  # nosec B704  # matplotlib escapes its text
