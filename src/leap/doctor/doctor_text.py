"""An examination in words and tables: for a terminal, and those that the page has too."""

from collections.abc import Iterator
from typing import Any

from leap.core.grid import Grid
from leap.report.findings import wrap
from leap.report.sections import LAYERS, grid


def lines(examination: dict[str, Any]) -> Iterator[str]:
    """Put the examination into lines for a terminal, from the verdict down to the layers."""
    rule, sentences = examination["exit_rule"], examination["sentences"]
    yield f"{examination['model']}: {examination['depth']} layers, {examination['width']} wide"
    yield (
        f"{sentences['n']} sentences ({sentences['source']}), {sentences['mean_tokens']:.1f} tokens each; "
        f"rule: theta {rule['threshold']:g}, min_layer {rule['min_layer']}, patience {rule['patience']}"
    )
    yield f"\nVERDICT: {examination['verdict']}"
    yield from wrap(examination["advice"], "  ")
    yield "\nSymptoms of exit-incompatible models (1 to 3: paper, section 5.2)"
    for number, symptom in enumerate(examination["symptoms"], 1):
        yield f"  {number} {word_of(symptom).upper() if symptom['found'] else word_of(symptom)}: {symptom['name']}"
        yield from wrap(symptom["words"], "      ")
    yield f"\n{checklist_grid(examination).text()}"
    yield f"\n{grid(LAYERS, examination['diagnosis']['layers']).text()}\n"
    yield from wrap(adaptivity(examination["diagnosis"]), "  ")


def checklist_grid(examination: dict[str, Any]) -> Grid:
    rows = [{**row, "mark": "passes" if row["passed"] else "fails"} for row in examination["checklist"]]
    return grid("each sentence at its own exit=name; value; bound; checklist=mark", rows, last_words=True)


def adaptivity(diagnosis: dict[str, Any]) -> str:
    """Say what choosing a depth for each sentence wins over cutting the model at the same depth."""
    gains, cut = diagnosis["adaptive"], diagnosis["truncation"]
    low, high = gains["similarity_gain_ci95"]
    return (
        f"Adaptive gain: cut at {diagnosis['exit']['expected_layers']:.2f} layers for all sentences, the model "
        f"would have a cosine of {cut['similarity']:.4f} to full depth; choosing for each sentence adds "
        f"{gains['similarity_gain']:+.4f} [{low:+.4f}, {high:+.4f}]. An oracle that sees the last layer would add "
        f"{gains['similarity_ceiling']:+.4f} at that depth."
    )


def word_of(symptom: dict[str, Any]) -> str:
    return "found" if symptom["found"] else "not found"
