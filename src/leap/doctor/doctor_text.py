"""An examination in words and tables: for a terminal, and those that the page has too."""

from collections.abc import Iterator
from typing import Any

from leap.core.grid import Grid
from leap.report.findings import wrapped
from leap.report.sections import LAYERS, grid


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Put the examination into lines for a terminal, from the verdict down to the layers."""
    rule, sentences = found["exit_rule"], found["sentences"]
    yield f"{found['model']}: {found['depth']} layers, {found['width']} wide"
    yield (
        f"{sentences['n']} sentences ({sentences['source']}), {sentences['mean_tokens']:.1f} tokens each; "
        f"rule: theta {rule['threshold']:g}, min_layer {rule['min_layer']}, patience {rule['patience']}"
    )
    yield f"\nVERDICT: {found['verdict']}"
    yield from wrapped(found["advice"], "  ")
    yield "\nSymptoms of exit-incompatible models (1 to 3: paper, section 5.2)"
    for number, symptom in enumerate(found["symptoms"], 1):
        yield f"  {number} {word_of(symptom).upper() if symptom['found'] else word_of(symptom)}: {symptom['name']}"
        yield from wrapped(symptom["words"], "      ")
    yield f"\n{checklist_grid(found).text()}"
    yield f"\n{grid(LAYERS, found['diagnosis']['layers']).text()}\n"
    yield from wrapped(adaptivity(found["diagnosis"]), "  ")


def checklist_grid(found: dict[str, Any]) -> Grid:
    rows = [{**row, "mark": "passes" if row["passed"] else "fails"} for row in found["checklist"]]
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
