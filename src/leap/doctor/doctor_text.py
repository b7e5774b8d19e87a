"""An examination for a terminal."""

import textwrap
from collections.abc import Iterator
from typing import Any


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The examination, from the verdict down to the layers."""
    rule, sentences = found["exit_rule"], found["sentences"]
    yield f"{found['model']}: {found['depth']} layers, {found['width']} wide"
    yield (
        f"{sentences['n']} sentences ({sentences['source']}), {sentences['mean_tokens']:.1f} tokens each; "
        f"rule: theta {rule['threshold']:g}, min_layer {rule['min_layer']}, patience {rule['patience']}"
    )
    yield ""
    yield f"VERDICT: {found['verdict']}"
    yield from wrapped(found["advice"])
    yield ""
    yield "Symptoms of exit-incompatible models (1 to 3: paper, section 5.2)"
    for number, symptom in enumerate(found["symptoms"], 1):
        yield f"  {number} {'FOUND    ' if symptom['found'] else 'not found'}  {symptom['name']}"
        yield from wrapped(symptom["words"], "               ")
    yield ""
    yield "Deployment checklist, each sentence at its own exit"
    for row in found["checklist"]:
        mark = "ok    " if row["passed"] else "FAILED"
        yield f"  {mark}  {row['name']:<26}{row['value']:>7.3f}  {row['bound']}"
    yield ""
    yield from layer_table(found["diagnosis"])
    yield ""
    yield from adaptivity(found["diagnosis"])


def layer_table(diagnosis: dict[str, Any]) -> Iterator[str]:
    """A line a layer."""
    yield "layer  to final  to previous  leave by  leave by (oracle)  NN@10  contraction"
    for row in diagnosis["layers"]:
        yield (
            f"{row['layer']:>5}  {row['similarity_to_final']:>8.3f}  {_number(row['stability']):>11}  "
            f"{row['exit_rate_converged']:>8.1%}  {row['exit_rate_near_final']:>17.1%}  "
            f"{row['nn_at_10']:>5.2f}  {_number(row['contraction']):>11}"
        )


def adaptivity(diagnosis: dict[str, Any]) -> Iterator[str]:
    """What choosing a depth for each sentence wins over cutting the model at the same depth."""
    gains, cut = diagnosis["adaptive"], diagnosis["truncation"]
    low, high = gains["similarity_gain_ci95"]
    yield from wrapped(
        f"Adaptive gain: cut at {diagnosis['exit']['expected_layers']:.2f} layers for all sentences, the "
        f"model would have a cosine of {cut['similarity']:.4f} to full depth; choosing for each sentence "
        f"adds {gains['similarity_gain']:+.4f} [{low:+.4f}, {high:+.4f}]. An oracle that sees the last layer "
        f"would add {gains['similarity_ceiling']:+.4f} at that depth."
    )


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Words in lines for a terminal."""
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
