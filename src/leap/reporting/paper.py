"""The paper's main figures, to stand beside ours and never to be mixed with them."""

from dataclasses import dataclass
from typing import Any

from leap.reporting.summary import dig

LABEL = "paper (MiniLM-L12, bert-large teacher, L4 GPU)"


@dataclass(frozen=True)
class Figure:
    """One number of the paper and ours of the same kind."""

    what: str
    paper: str
    # null: this run has no such number
    ours: float | None
    digits: int
    # What keeps the two apart beside model and hardware.
    note: str


def beside_the_paper(summary: dict[str, Any]) -> list[Figure]:
    """The figures that this run can show too, for the variants `leap` and `baseline`.

    Source: the paper's §5 (layer table, main table), Appendix "Latency Measurement". Its layer table and its
    expected depth come from the rule `near_final`, which needs the last layer; ours is the same rule here.
    """
    leap = summary["variants"].get("leap", {})
    baseline = summary["variants"].get("baseline", {})
    pairs = f"ours: set {summary['primary_set']}; paper: STS-B test"
    seventh: dict[str, Any] = next((row for row in leap.get("layers") or [] if row["layer"] == 7), {})
    sentences = "ours: this run's sentences and depth"
    return [
        Figure(
            "Spearman, LEAP, exited",
            "0.763 (0.760 ± 0.006 over seeds)",
            dig(leap, "sts", "spearman_exit"),
            3,
            pairs,
        ),
        Figure("Spearman, baseline", "0.777", dig(baseline, "sts", "spearman_full"), 3, pairs),
        Figure(
            "expected layers, near_final", "6.7 of 12", dig(leap, "oracle", "expected_layers"), 2, sentences
        ),
        Figure(
            "exited by layer 7, near_final",
            "91.9 %",
            percent(seventh.get("exit_rate_near_final")),
            1,
            f"{sentences}, in %",
        ),
        Figure("similarity to final, layer 7", "0.963", seventh.get("similarity_to_final"), 3, sentences),
        Figure("NN@10, layer 7", "0.84", seventh.get("nn_at_10"), 2, sentences),
        Figure(
            "wall-clock speed-up, batch 1",
            "1.61x",
            leap.get("speed_up"),
            2,
            "ours: this run's device and precision",
        ),
    ]


def percent(share: float | None) -> float | None:
    """A share in per cent."""
    return None if share is None else 100 * share
