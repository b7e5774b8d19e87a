"""`leap calibrate --queries --documents`: the earliest layer at which queries keep their nearest documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leap.core.errors import UserError
from leap.core.files import read_json, write_with_checksum
from leap.core.sample_sizes import NEIGHBOURS, fewest_draws
from leap.exits.calibrate.calibrate_folder import check_without_heads
from leap.exits.calibrate.fit_heads import fit_heads
from leap.exits.calibrate.risk import fixed_sequence, mean_p_value
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.neighbours import overlap
from leap.exits.search import nearest
from leap.models.exit_heads import ExitHeads
from leap.models.folder import hash_weights

FILE = "query_calibration.json"
# Among few documents the nearest ten stay whatever a query's vector is.
FEWEST_DOCUMENTS = 10 * NEIGHBOURS


@dataclass(frozen=True)
class QueryDemand:
    """The statement that a query layer must show.

    keep: the smallest mean share of the ten nearest documents at full depth that must stay.
    confidence: the probability that it does.
    """

    keep: float = 0.9
    confidence: float = 0.95

    def check(self) -> None:
        faults = [
            f"{name} {value} must lie between 0 and 1" for name, value in vars(self).items() if not 0 < value < 1
        ]
        if faults:
            raise ValueError("; ".join(faults))


class QueryCalibration(NamedTuple):
    """The layer that queries leave at (L where nothing could be shown), heads fitted for it, and the report."""

    layer: int
    heads: ExitHeads | None
    report: dict[str, Any]
    # The model's own exit rule, for a folder without leap.json.
    rule: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write the query rule into leap.json and the report next to the weights; the rule last."""
        if self.heads is not None:
            self.heads.save(folder)
        write_with_checksum(folder / FILE, {"weights": hash_weights(folder), **self.report})
        path = folder / "leap.json"
        content = read_json(path, "leap calibrate") if path.is_file() else {"exit": self.rule}
        content.pop("checksum", None)
        write_with_checksum(path, content | {"query": {"layer": self.layer}, "document": "full"})


def calibrate_queries(
    model: LeapEncoder,
    queries: Sequence[str],
    documents: Sequence[str],
    demand: QueryDemand,
    *,
    with_heads: bool = False,
    batch_size: int = 32,
    seed: int = 17,
) -> QueryCalibration:
    """Find the earliest query layer that is shown to keep the nearest documents.

    The statement: with probability `demand.confidence` over the queries, a future query drawn like them that
    leaves at the layer finds, on average, at least the share `demand.keep` of the ten documents that are
    nearest to it at full depth. The documents are the given ones, each once, indexed at full depth.

    Args:
        queries: held out: a random sample of what will be asked, used for nothing else.
        documents: the collection that is searched.
        with_heads: fit a linear map a layer on the documents, and send the queries through it.
        seed: of the order in which the queries are tested.

    Raises:
        UserError: there are too few queries or documents.
    """
    demand.check()
    unique = list(dict.fromkeys(queries))
    least = fewest_draws(1 - demand.keep, 1 - demand.confidence)
    if len(unique) < least:
        raise UserError(
            f"{len(unique)} different queries are too few: keep {demand.keep} at confidence "
            f"{demand.confidence} cannot be shown with fewer than {least}: give more, hundreds are best"
        )
    # A repeated document is as near as its copy: with it, other ten would stay than the ten nearest texts.
    documents = list(dict.fromkeys(documents))
    if len(documents) < FEWEST_DOCUMENTS:
        raise UserError(
            f"{len(documents)} different documents are too few: among fewer than {FEWEST_DOCUMENTS} a query keeps "
            f"its nearest {NEIGHBOURS} by chance: give more"
        )
    fitted = None
    if with_heads:
        check_without_heads(model)
        fitted = fit_heads(pooled for _, pooled in model.pooled_layers(documents, batch_size))
    order = torch.randperm(len(unique), generator=torch.Generator().manual_seed(seed)).tolist()
    overlaps = measure_overlap(
        model, [unique[row] for row in order], documents, heads=fitted, batch_size=batch_size
    )
    layer = earliest_layer(overlaps, demand)
    return QueryCalibration(
        layer or model.depth,
        fitted,
        {
            "keep": demand.keep,
            "confidence": demand.confidence,
            "layer": layer,
            "queries": len(unique),
            "documents": len(documents),
            "kept_by_layer": {str(number): share for number, share in enumerate(overlaps.mean(1).tolist(), 1)},
        },
        vars(model.rule),
    )


def earliest_layer(overlaps: Tensor, demand: QueryDemand) -> int | None:
    """Test layer after layer, from the deepest down, and return the last one that passes; None if none does.

    The order is fixed before any query is seen, so no level is divided (fixed sequence testing).

    `overlaps` is [L - 1, N] float64 in [0, 1], of layers 1 to L - 1, queries in random order.
    """
    level = 1 - demand.confidence
    shown = fixed_sequence(
        range(len(overlaps), 0, -1), lambda layer: mean_p_value(overlaps[layer - 1], demand.keep, level), level
    )
    return min(shown, default=None)


def measure_overlap(
    model: LeapEncoder,
    queries: Sequence[str],
    documents: Sequence[str],
    *,
    heads: ExitHeads | None = None,
    batch_size: int = 32,
) -> Tensor:
    """Measure the share of its ten nearest documents at full depth that each query keeps at each layer.

    This is the realised share as well: on queries or documents from elsewhere, of which a calibration says
    nothing, its mean over the queries is what to compare with `keep`. The model's prompts `query` and `document`
    are put before the texts; `heads` map the vectors of queries that leave early, the model's own if None.

    Returns:
        [L - 1, N] float64, of layers 1 to L - 1.
    """
    width = model.encoder.config.width
    index = torch.empty(len(documents), width)
    for rows, pooled in model.pooled_layers(documents, batch_size, prompt_name="document"):
        index[rows] = pooled[-1]
    vectors = torch.empty(model.depth, len(queries), width)
    heads = heads or model.heads
    heads = heads and heads.to(torch.device("cpu"))
    for rows, pooled in model.pooled_layers(queries, batch_size, prompt_name="query"):
        vectors[:, rows] = (pooled if heads is None else heads.mapped(pooled))[1:]
    if not (index.isfinite().all() and vectors.isfinite().all()):
        raise UserError(
            f"{model.folder} gives vectors that are not finite: its weights are damaged, train or fetch it again"
        )
    index, vectors = index[:, : model.truncate_dim], vectors[..., : model.truncate_dim]  # as they are returned
    full = nearest(vectors[-1], index, NEIGHBOURS)
    return torch.stack([overlap(nearest(layer, index, NEIGHBOURS), full) for layer in vectors[:-1]])


def describe_queries(calibrated: QueryCalibration) -> list[str]:
    """Put the outcome into lines for a person."""
    facts = calibrated.report
    demanded = f"at least {facts['keep']:.0%} of the ten nearest, confidence {facts['confidence']:.0%}"
    shares = ", ".join(f"{layer}: {share:.1%}" for layer, share in facts["kept_by_layer"].items())
    table = f"kept by layer, over {facts['queries']} queries and {facts['documents']} documents: {shares}"
    if facts["layer"] is None:
        return [f"nothing can be shown ({demanded}): queries compute all layers", table]
    return [f"queries may leave at layer {facts['layer']} ({demanded})", table]
