"""An examination as one HTML page with its pictures, by the report's templates: nothing from the network."""

from typing import Any

from leap.core.grid import Grid
from leap.doctor.doctor_text import adaptivity, checklist_grid, word_of
from leap.evidence.bounds import ENOUGH_NEIGHBOURS
from leap.report import page as report_page
from leap.report import plots
from leap.report.sections import FIGURES, LAYERS, LENGTHS, grid, length_rows

SYMPTOMS_NOTE = (
    "The first three are the paper's (section 5.2). The fourth is what they miss: the rule sees that a vector "
    "stands still, not where it stands."
)


def render(examination: dict[str, Any]) -> str:
    """Render the examination as one HTML page that needs nothing else."""
    symptoms = [[item["name"], word_of(item), item["words"]] for item in examination["symptoms"]]
    diagnosis = examination["diagnosis"]
    return report_page.render(
        "doctor.html.j2",
        examination=examination,
        symptoms=Grid(("symptom", "", "figures"), symptoms, words=3),
        symptoms_note=SYMPTOMS_NOTE,
        checklist=checklist_grid(examination),
        pictures=[(caption, report_page.picture(svg)) for caption, svg in pictures(examination)],
        layers=grid(LAYERS, diagnosis["layers"]),
        rules=rule_grid(diagnosis),
        lengths=grid(LENGTHS, length_rows(diagnosis["by_length"] or [])),
        adaptivity=adaptivity(diagnosis),
    )


def rule_grid(diagnosis: dict[str, Any]) -> Grid:
    """Tabulate the rules that no other beats for their number of layers."""
    words = {True: "passes", False: "-"}
    rows = [
        {**row, "checklist": "passes: recommended" if row == diagnosis["recommended"] else words[row["passes"]]}
        for row in sorted(diagnosis["sweep"], key=lambda row: row["expected_layers"])
        if row["efficient"]
    ]
    return grid(f"theta=threshold:2; min_layer:0; {FIGURES}; checklist", rows, words=0, last_words=True)


def pictures(examination: dict[str, Any]) -> list[tuple[str, str]]:
    name = examination["model"].rstrip("/").rpartition("/")[2]
    layers = [{"variant": name, **row} for row in examination["diagnosis"]["layers"]]
    leaving = [
        {"variant": rule, "layer": row["layer"], "share": row[f"exit_share_{key}"]}
        for rule, key in (("deployable rule", "converged"), ("oracle", "near_final"))
        for row in layers
    ]
    theta = examination["exit_rule"]["threshold"]
    curves = (
        ("Similarity of each layer to the last one", "similarity_to_final", "cosine to the last layer", theta),
        (
            "Each layer against the one before, which the rule sees",
            "stability",
            "cosine to the layer before",
            theta,
        ),
        ("Neighbours that stay (NN@10) at each layer", "nn_at_10", "NN@10", ENOUGH_NEIGHBOURS),
    )
    drawn = [
        (f"{caption}; dotted: {line:g}", plots.curves(layers, "layer", key, ("layer", label), line))
        for caption, key, label, line in curves
    ]
    return [*drawn, ("Where sentences leave", plots.exit_distribution(leaving))]
