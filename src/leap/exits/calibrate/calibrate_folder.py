"""`leap calibrate`: from a model folder and sentences to the files next to its weights."""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from leap.core.errors import UserError
from leap.core.files import must_be_new, whole_folder
from leap.core.project import stage_that_writes
from leap.core.sample_sizes import fewest_to_calibrate
from leap.data.tables import file_ending, file_rows
from leap.exits.calibrate.certify import Parts, certify, report, searching_rows
from leap.exits.calibrate.fit_heads import fit_heads
from leap.exits.calibrate.measure import measure
from leap.exits.calibrate.risk import Demand
from leap.exits.calibration import Calibration
from leap.exits.leap_encoder import LeapEncoder
from leap.models.exit_heads import FILE as HEADS
from leap.models.exit_heads import ExitHeads

log = logging.getLogger(__name__)

# Other forms of the weights; a copy of the folder needs only the safetensors.
NOT_COPIED = ("*.bin", "*.onnx", ".*", "README.md")


class Saved(Protocol):
    """The outcome of a calibration, which is written next to the weights."""

    @property
    def report(self) -> dict[str, Any]: ...

    def save(self, folder: Path) -> None: ...


Result = TypeVar("Result", bound=Saved)


class Calibrated(NamedTuple):
    """A tested calibration, the exit heads that were fitted for it (None for none), and the report on both."""

    calibration: Calibration
    heads: ExitHeads | None
    report: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write the files next to the weights, each whole; the calibration last, for it names the heads."""
        if self.heads is not None:
            self.heads.save(folder)
        self.calibration.save(folder, self.report)


def calibrate(
    model: LeapEncoder,
    sentences: Sequence[str],
    demand: Demand,
    *,
    with_heads: bool = False,
    batch_size: int = 32,
    seed: int = 17,
) -> Calibrated:
    """Find the thresholds with the fewest expected layers that hold what is demanded.

    `leap.exits.calibrate.certify.certify` has the statement. Repeated sentences are taken once, for they are
    no independent draws. A third of the sentences fits the heads and the predictor, a third makes the
    candidates, a third tests them.

    Args:
        model: k is its own rule's.
        sentences: a sample of what the model is used on, not seen in its training.
        with_heads: fit exit heads too, for a model without; the vectors that leave through heads are calibrated.
        seed: of the three parts.

    Raises:
        UserError: there are too few sentences, or the model has heads already.
    """
    demand.check()
    unique = list(dict.fromkeys(sentences))
    least = fewest_to_calibrate(demand.risk, demand.confidence, demand.keep)
    if len(unique) < least:
        raise UserError(
            f"{len(unique)} different sentences are too few: risk {demand.risk} and keep {demand.keep} at "
            f"confidence {demand.confidence} cannot be shown with fewer than {least}: give more, thousands "
            "are best"
        )
    parts = torch.randperm(len(unique), generator=torch.Generator().manual_seed(seed)).tensor_split(3)
    fitted = None
    if with_heads:
        check_without_heads(model)
        fitted_on = [unique[row] for row in parts[0].tolist()]
        if len(fitted_on) < 4 * model.encoder.config.width:
            log.warning(
                "heads of %d dimensions fitted on %d sentences will be poor: give three times %d or more",
                *(model.encoder.config.width, len(fitted_on), 4 * model.encoder.config.width),
            )
        fitted = fit_heads(pooled for _, pooled in model.pooled_layers(fitted_on, batch_size, True))
    searching = searching_rows(parts)
    measured, vectors = measure(
        model, unique, model.rule.patience, fitted or model.heads, batch_size, torch.cat(searching)
    )
    tables = [measured.at(rows) for rows in parts]
    split = Parts.of(tables, torch.split(vectors, [len(rows) for rows in searching], dim=1))
    calibration, outcome = certify(split, model.rule.patience, demand)
    return Calibrated(calibration, fitted, report(demand, split, calibration, outcome))


def check_without_heads(model: LeapEncoder) -> None:
    if model.heads is not None:
        raise UserError(
            f"{model.folder} has exit heads already, and its exits go through them: calibrate without --heads; to "
            f"fit others, take {HEADS} out of a copy of the folder first, and its line out of SHA256SUMS"
        )


def calibrate_folder(
    calibrate: Callable[..., Result],
    name: str,
    files: Sequence[Path],
    demand: Any,
    *,
    column: str | None,
    output: Path | None,
    device: str,
    **options: Any,
) -> Result:
    """Run `leap calibrate`: read the texts, calibrate the model, and write into its folder or into a copy.

    Args:
        calibrate: `calibrate`, or `leap.exits.calibrate.query_layer.calibrate_queries`; takes the options.
        name: a folder, an installed package or a hub id; of the last two a copy only.
        files: what it takes, a file each.
        demand: likewise.

    Raises:
        UserError: an argument, a file or the folder cannot be used.
    """
    try:
        demand.check()
    except ValueError as error:
        raise UserError(str(error)) from None
    check_target(Path(name), output)
    texts = [read_column(file, column) for file in files]
    model = LeapEncoder(name, device)
    folder = model.folder
    read = (f"{len(rows)} texts of {file}" for rows, file in zip(texts, files, strict=True))
    log.info("%s: %s", name, ", ".join(read))
    calibrated = calibrate(model, *texts, demand, **options)
    calibrated.report["files"] = [file.name for file in files]
    if output is None:
        calibrated.save(folder)
        return calibrated
    with whole_folder(output) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        calibrated.save(temporary)
    return calibrated


def check_target(folder: Path, output: Path | None) -> None:
    """Check, before any work, that the result can be written where it is to go."""
    if output is not None:
        must_be_new(output)
    elif stage := stage_that_writes(folder):
        raise UserError(
            f"{folder} is an output of DVC's stage {stage}: the next `dvc repro` would write it again, without "
            "this calibration. Name a folder for a calibrated copy by --output"
        )
    elif not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder here: name one, or, for a package or a hub model, one for a calibrated "
            "copy by --output"
        )
    elif not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written to: name a folder for a calibrated copy by --output")


def read_column(file: Path, column: str | None) -> list[str]:
    """Read the texts of one column of a parquet, csv, tsv, jsonl or txt file.

    Args:
        column: if None, `text` of a txt file, which has one text a line, and `sentence` of any other.

    Raises:
        UserError: the file or the column is missing, or a value is not text.
    """
    if not file.is_file():
        raise UserError(f"{file} is not a file: name a txt, parquet, csv, tsv or jsonl file of sentences")
    name = column or ("text" if file_ending(file) == ".txt" else "sentence")
    return [row.text(0, name) for row in file_rows(file, [name])]


def describe(calibrated: Calibrated) -> list[str]:
    """Put the outcome into lines for a person."""
    facts, depth = calibrated.report, len(calibrated.calibration.thresholds)
    if not facts["exited"]:
        return [
            f"no exit can be shown to be safe: strategy calibrated computes all {depth} layers",
            f"(demanded: at most {facts['risk']:.1%} of the exited vectors below cosine {facts['floor']} to "
            f"full depth, {facts['keep']:.0%} of ten neighbours kept, confidence {facts['confidence']:.0%})",
        ]
    exits = ", ".join(f"{count} at {layer}" for layer, count in facts["exits"].items())
    return [
        f"score: {calibrated.calibration.score} similarity{', with fitted heads' if calibrated.heads else ''}",
        f"expected layers: {facts['expected_layers']:.2f} of {depth} (min_layer "
        f"{calibrated.calibration.min_layer}; {exits})",
        f"realised risk: {facts['realised_risk']:.2%} of {facts['exited']} exited vectors of the test part "
        f"below cosine {facts['floor']} to full depth (demanded: at most {facts['risk']:.1%}, confidence "
        f"{facts['confidence']:.0%})",
        f"neighbours kept: {facts['nn_at_10']:.1%} of the ten nearest of {facts['searching']['documents']} "
        f"sentences, over {facts['searching']['queries']} (demanded: at least {facts['keep']:.0%}, confidence "
        f"{facts['confidence']:.0%})",
        "the gate's checks that need no scored pairs: "
        + ", ".join(
            f"{check['name']} {check['value']:.3f} {'passes' if check['passed'] else 'fails'} ({check['bound']})"
            for check in facts["checklist"]
        ),
    ]
