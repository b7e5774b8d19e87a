"""`leap calibrate`: from a model folder and sentences to the files beside its weights."""

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from leap.core.errors import UserError
from leap.core.files import whole_folder
from leap.core.sample_sizes import fewest_to_calibrate
from leap.data.tables import file_ending, file_rows
from leap.exits.calibrate.certify import Parts, certified, report
from leap.exits.calibrate.fit_lens import fit_lens
from leap.exits.calibrate.measure import measure
from leap.exits.calibrate.risk import Demand
from leap.exits.calibration import Calibration
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.lens import Lens

log = logging.getLogger(__name__)

# Other forms of the weights; a copy of the folder needs only the safetensors.
NOT_COPIED = ("*.bin", "*.onnx", ".*", "README.md")


class Calibrated(NamedTuple):
    """What `leap calibrate` found."""

    calibration: Calibration
    lens: Lens | None
    report: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Writes the files beside the weights, each whole; the calibration last, for it names the lens."""
        if self.lens is not None:
            self.lens.save(folder)
        self.calibration.save(folder, self.report)

    def save_copy(self, model: Path, target: Path) -> None:
        """Writes a copy of the model's folder with the files in it, whole or not at all."""
        with whole_folder(target) as beside:
            shutil.copytree(model, beside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
            self.save(beside)


def calibrate(
    model: LeapEncoder,
    sentences: Sequence[str],
    demand: Demand,
    *,
    with_lens: bool = False,
    batch_size: int = 32,
    seed: int = 17,
) -> Calibrated:
    """Finds the thresholds with the fewest expected layers that hold what is demanded.

    `leap.exits.calibrate.certify.certified` has the statement. Repeated sentences are taken once, for they are
    no independent draws. A third of the sentences fits the lens and the predictor, a third makes the
    candidates, a third tests them.

    Args:
        model: any LeapEncoder; k is its own rule's.
        sentences: a sample of what the model is used on, not seen in its training.
        demand: floor, risk and confidence.
        with_lens: fit a lens too, and calibrate the mapped vectors.
        batch_size: rows computed together.
        seed: of the three parts.

    Raises:
        UserError: there are too few sentences.
    """
    demand.check()
    unique = list(dict.fromkeys(sentences))
    least = fewest_to_calibrate(demand.risk, demand.confidence)
    if len(unique) < least:
        raise UserError(
            f"{len(unique)} different sentences are too few: risk {demand.risk} at confidence "
            f"{demand.confidence} cannot be shown with less than {least}, and should have thousands"
        )
    parts = torch.randperm(len(unique), generator=torch.Generator().manual_seed(seed)).tensor_split(3)
    lens = None
    if with_lens:
        fitted_on = [unique[row] for row in parts[0].tolist()]
        if len(fitted_on) < 4 * model.encoder.config.width:
            log.warning(
                "a lens of %d dimensions fitted on %d sentences will be poor: give three times %d or more",
                *(model.encoder.config.width, len(fitted_on), 4 * model.encoder.config.width),
            )
        lens = fit_lens(pooled for _, pooled in model.pooled_layers(fitted_on, batch_size, True))
    measured = measure(model, unique, model.rule.patience, lens, batch_size)
    split = Parts(*(measured.at(rows) for rows in parts))
    calibration, outcome = certified(split, model.rule.patience, demand, with_lens)
    return Calibrated(calibration, lens, report(demand, split, calibration, outcome))


def calibrate_folder(
    folder: Path,
    sentences: Path,
    demand: Demand,
    *,
    column: str | None,
    with_lens: bool,
    output: Path | None,
    batch_size: int,
    device: str,
    seed: int,
) -> Calibrated:
    """The command: reads the sentences, calibrates the folder, and writes into it or into a copy.

    Raises:
        UserError: an argument, the sentences or the folder cannot be used.
    """
    try:
        demand.check()
    except ValueError as error:
        raise UserError(str(error)) from None
    model = LeapEncoder(folder, device)
    if output is None and not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written to: name a folder for a calibrated copy by --output")
    texts = read_column(sentences, column)
    log.info("%s: %d sentences of %s", folder, len(texts), sentences)
    found = calibrate(model, texts, demand, with_lens=with_lens, batch_size=batch_size, seed=seed)
    found.report["file"] = sentences.name
    if output is None:
        found.save(folder)
    else:
        found.save_copy(folder, output)
    return found


def read_column(file: Path, column: str | None) -> list[str]:
    """The texts of one column of a parquet, csv, tsv, jsonl or txt file.

    Args:
        file: a txt file has one text a line.
        column: `text` of a txt file and `sentence` of any other if None.

    Raises:
        UserError: the file or the column is missing, or a value is not text.
    """
    if not file.is_file():
        raise UserError(f"{file} is not a file: name a txt, parquet, csv, tsv or jsonl file of sentences")
    name = column or ("text" if file_ending(file) == ".txt" else "sentence")
    return [row.text(0, name) for row in file_rows(file, [name])]


def lines(found: Calibrated) -> list[str]:
    """The outcome for a person."""
    facts, depth = found.report, len(found.calibration.thresholds)
    if not facts["exited"]:
        return [
            f"no exit can be shown to be safe: strategy calibrated computes all {depth} layers",
            f"(demanded: at most {facts['risk']:.1%} of the exited vectors below cosine {facts['floor']} to "
            f"full depth, confidence {facts['confidence']:.0%})",
        ]
    exits = ", ".join(f"{count} at {layer}" for layer, count in facts["exits"].items())
    return [
        f"score: {found.calibration.score} similarity{', with the lens' if found.lens else ''}",
        f"expected layers: {facts['expected_layers']:.2f} of {depth} (min_layer "
        f"{found.calibration.min_layer}; {exits})",
        f"realised risk: {facts['realised_risk']:.2%} of {facts['exited']} exited vectors of the test part "
        f"below cosine {facts['floor']} to full depth (demanded: at most {facts['risk']:.1%}, confidence "
        f"{facts['confidence']:.0%})",
        f"mean similarity to full depth: {facts['similarity']:.4f}",
    ]
