"""A window: what serving processes saw between two moments, as counts and means that can be added up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from leap.core.errors import UserError
from leap.core.files import read_json
from leap.serve.score_shift import stability_index
from leap.serve.shadow import Agreement

FORM = 2


@dataclass(frozen=True)
class Mean:
    """A mean over n values; null where there are none."""

    n: int
    mean: float | None


@dataclass(frozen=True)
class Window:
    """Counts of one process, or of several added up.

    started, ended: UTC.
    model: checkpoint (sha256 of the weights), depth, exit_rule.
    rules: sentences by the exit rule that decided on them, in words; a request may have a rule of its own.
    exits: entry l - 1 counts the sentences that left at layer l under an exit rule.
    bypassed: sentences encoded without one (strategy full or fixed); they are in no other number.
    not_finite: similarities that were not numbers, left out of the means.
    similarity: entry l - 1: cos(p_l, p_{l-k}) of the sentences still there, where the rule computed it.
    shadowed: cos(exited, full) of the sampled sentences.
    to_final: entry l - 1: cos(p_l, p_L) of the sampled sentences, whether or not they stayed.
    agreement: NN@10 of the sampled sentences.
    scores: the similarity at the first check, counted in the calibration's deciles (`leap.serve.score_shift`).
    calibrated_scores: how many sentences like the calibration's would be in each of them.
    expected_layers: E[layers] that the evaluation found, for the predicted layer reduction; null if unknown.
    """

    started: datetime
    ended: datetime
    model: dict[str, Any]
    rules: Mapping[str, int]
    exits: tuple[int, ...]
    bypassed: int
    not_finite: int
    similarity: tuple[Mean, ...]
    shadowed: Mean
    to_final: tuple[Mean, ...]
    agreement: Agreement
    scores: tuple[float, ...]
    calibrated_scores: tuple[float, ...]
    expected_layers: float | None

    @property
    def depth(self) -> int:
        return len(self.exits)

    @property
    def sentences(self) -> int:
        return sum(self.exits)

    @property
    def mean_layer(self) -> float | None:
        total = sum(layer * count for layer, count in enumerate(self.exits, 1))
        return total / self.sentences if self.sentences else None

    @property
    def exit_rate(self) -> float | None:
        return sum(self.exits[:-1]) / self.sentences if self.sentences else None

    @property
    def layer_reduction(self) -> float | None:
        return self.depth / self.mean_layer if self.mean_layer else None

    @property
    def score_shift(self) -> float | None:
        return stability_index(np.array(self.scores), np.array(self.calibrated_scores))

    @property
    def predicted_layer_reduction(self) -> float | None:
        return self.depth / self.expected_layers if self.expected_layers else None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "window",
            "form": FORM,
            "started": stamp(self.started),
            "ended": stamp(self.ended),
            "model": self.model,
            "rules": dict(self.rules),
            "sentences": self.sentences,
            "bypassed": self.bypassed,
            "not_finite": self.not_finite,
            "exit": {
                "layers": {str(layer): count for layer, count in enumerate(self.exits, 1) if count},
                "mean_layer": self.mean_layer,
                "rate": self.exit_rate,
                "expected_layers": self.expected_layers,
                "layer_reduction": self.layer_reduction,
                "predicted_layer_reduction": self.predicted_layer_reduction,
            },
            "similarity": by_layer(self.similarity),
            "scores": {
                "counts": list(self.scores),
                "calibrated": list(self.calibrated_scores),
                "shift": self.score_shift,
            },
            "shadow": {
                "sentences": self.shadowed.n,
                "similarity": self.shadowed.mean,
                "similarity_to_final": by_layer(self.to_final),
                "nn_at_10": self.agreement.mean,
                "nn_fail_50": self.agreement.failed,
                "nn_sentences": self.agreement.n,
            },
        }


def read_windows(pattern: str) -> Window:
    """Read the windows of a file, of a folder or of a pattern (`windows/2026-11-2*`), added up.

    Raises:
        UserError: there is none, one is not a window file, or they are of different models.
    """
    path = Path(pattern)
    files = sorted(path.glob("*.json") if path.is_dir() else path.parent.glob(path.name))
    if not files:
        raise UserError(f"{pattern}: no window files there; a served model writes them to LEAP_MONITOR_FOLDER")
    windows = {file: from_json(read_json(file, "a monitored encoder"), file) for file in files}
    first = next(iter(windows.values()))
    for file, window in windows.items():
        if window.model != first.model:
            raise UserError(
                f"{file} is of another model or exit rule than {files[0]}: name windows of one model only"
            )
    return add_windows(list(windows.values()))


def add_windows(windows: Sequence[Window]) -> Window:
    """Add several windows of one model; means are weighted by what they are means of."""
    first = windows[0]
    layers = range(first.depth)
    judged = [window.agreement for window in windows]
    n = sum(each.n for each in judged)
    return Window(
        started=min(window.started for window in windows),
        ended=max(window.ended for window in windows),
        model=first.model,
        rules=sum((Counter(window.rules) for window in windows), Counter()),
        exits=tuple(sum(window.exits[layer] for window in windows) for layer in layers),
        bypassed=sum(window.bypassed for window in windows),
        not_finite=sum(window.not_finite for window in windows),
        similarity=tuple(_pool([window.similarity[layer] for window in windows]) for layer in layers),
        shadowed=_pool([window.shadowed for window in windows]),
        to_final=tuple(_pool([window.to_final[layer] for window in windows]) for layer in layers),
        agreement=Agreement(
            n,
            _pool([Mean(each.n, each.mean) for each in judged]).mean,
            _pool([Mean(each.n, each.failed) for each in judged]).mean,
        ),
        scores=tuple(map(sum, zip(*(window.scores for window in windows), strict=True))),
        calibrated_scores=tuple(map(sum, zip(*(window.calibrated_scores for window in windows), strict=True))),
        expected_layers=first.expected_layers,
    )


def from_json(content: Any, file: Path) -> Window:
    """Read a window file's content; UserError where it is none of this version."""
    try:
        if content["kind"] != "window" or content["form"] != FORM:
            raise ValueError(f"kind {content['kind']!r}, form {content['form']!r}")
        depth = int(content["model"]["depth"])
        shadow, exits = content["shadow"], content["exit"]
        return Window(
            started=datetime.fromisoformat(content["started"]),
            ended=datetime.fromisoformat(content["ended"]),
            model=content["model"],
            rules={str(rule): int(count) for rule, count in content["rules"].items()},
            exits=tuple(int(exits["layers"].get(str(layer), 0)) for layer in range(1, depth + 1)),
            bypassed=int(content["bypassed"]),
            not_finite=int(content["not_finite"]),
            similarity=_read_means(content["similarity"], depth),
            shadowed=Mean(int(shadow["sentences"]), shadow["similarity"]),
            to_final=_read_means(shadow["similarity_to_final"], depth),
            agreement=Agreement(int(shadow["nn_sentences"]), shadow["nn_at_10"], shadow["nn_fail_50"]),
            scores=tuple(map(float, content["scores"]["counts"])),
            calibrated_scores=tuple(map(float, content["scores"]["calibrated"])),
            expected_layers=exits["expected_layers"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{file} is not a window file (form {FORM}): {error!r}; a monitored encoder writes them"
        ) from None


def stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def by_layer(means: Sequence[Mean]) -> list[dict[str, Any]]:
    return [{"layer": layer, "mean": each.mean, "n": each.n} for layer, each in enumerate(means, 1) if each.n]


def _read_means(rows: list[dict[str, Any]], depth: int) -> tuple[Mean, ...]:
    means = {int(row["layer"]): Mean(int(row["n"]), float(row["mean"])) for row in rows}
    return tuple(means.get(layer, Mean(0, None)) for layer in range(1, depth + 1))


def _pool(means: Sequence[Mean]) -> Mean:
    known = [(each.n, each.mean) for each in means if each.n and each.mean is not None]
    n = sum(count for count, _ in known)
    return Mean(n, sum(count * mean for count, mean in known) / n if n else None)
