"""`leap bench`: any model's latency on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from leap.core.errors import UserError

app = typer.Typer(help="Measure a model on this machine.", no_args_is_help=True)

COLUMNS = ("path", "batch", "tokens", "mixed", "ms_p50", "ms_p95", "ms_p99", "expected_layers", "speed_up")


@app.callback()
def main() -> None:
    """Measure a model on this machine."""


@app.command()
def latency(
    model: Annotated[str, typer.Argument(help="A model folder, an installed package or a hub id.")],
    sentences: Annotated[
        Path | None, typer.Option(help="Text file, a sentence a line; if left out, the project's own pairs.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="theta; the folder's own if left out.")] = None,
    min_layer: Annotated[int | None, typer.Option(help="l_min; the folder's own if left out.")] = None,
    batch: Annotated[list[int], typer.Option(help="Batch size, several times.")] = [1, 8, 32],  # noqa: B006
    length: Annotated[list[str], typer.Option(help="'sentences', or tokens a row; several times.")] = [  # noqa: B006
        "sentences",
        "128",
    ],
    rival: Annotated[
        list[str], typer.Option(help="sentence_transformers, torch_compile, onnxruntime; several times.")
    ] = [],  # noqa: B006
    warmup: int = 50,
    iterations: int = 200,
    device: str = "auto",
    precision: Annotated[str, typer.Option(help="fp32, or fp16 on a card.")] = "fp32",
    quantize: Annotated[str | None, typer.Option(help="int8, on a CPU.")] = None,
    path: Annotated[str, typer.Option(help="auto, or how to compute: eager, fused, graphs.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; else PyTorch's choice.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the figures go as JSON.")] = None,
) -> None:
    """Time full depth, exits, checks without exits, truncation, rivals; keep the machine idle meanwhile."""
    import torch

    from leap.core.files import write_json
    from leap.exits import ExitRule, LeapEncoder
    from leap.latency.timing import latency_figures

    options = {
        "batch_sizes": batch,
        "lengths": [int(item) if item.isdigit() else item for item in length],
        "rivals": rival,
        "warmup": warmup,
        "iterations": iterations,
        "device": device,
        "precision": precision,
    }
    settings = _settings(options)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        encoder = LeapEncoder(model, device, quantize=quantize, path=path)  # type: ignore[arg-type] # checked there
        own = encoder.rule
        rule = ExitRule(
            own.threshold if threshold is None else threshold,
            own.min_layer if min_layer is None else min_layer,
            own.patience,
        )
        rule.check_depth(encoder.depth)
    except ValueError as error:
        raise UserError(str(error)) from None
    figures = latency_figures(encoder, read_sentences(sentences), rule, settings, seed=17)
    if out is not None:
        write_json(out, {**_head(model, encoder, rule), **figures})
    typer.echo(table(figures))


def read_sentences(path: Path | None) -> list[str]:
    """The different lines of a text file; the sentences of the project's own pairs if there is none.

    Raises:
        UserError: the file is missing, is no text, or has fewer than two sentences.
    """
    if path is None:
        import csv

        pairs = Path(__file__).parents[1] / "resources" / "similarity" / "pairs.csv"
        with pairs.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        lines = [row[column] for row in rows for column in ("sentence1", "sentence2")]
    else:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None
    unique = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(unique) < 2:
        raise UserError(f"{path} has {len(unique)} different sentences: at least 2 are needed")
    return unique


def table(figures: dict[str, Any]) -> str:
    """The rows as a Markdown table, and the floor below it."""
    lines = [f"| {' | '.join(COLUMNS)} | realised | monitoring |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for row in figures["rows"]:
        cells = [f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in COLUMNS]
        overhead = row["monitoring_overhead"]
        cells += [f"{row['layer_reduction_realised']:.3f}", "" if overhead is None else f"{overhead:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    floor = figures["floor"]
    lines.append(
        f"\nFloor, reading {floor['weight_bytes'] / 1e6:.1f} MB of weights once at "
        f"{floor['bandwidth_bytes_per_second'] / 1e9:.1f} GB/s: {floor['ms']:.3f} ms"
    )
    return "\n".join([*lines, *(f"{name} left out: {why}" for name, why in figures["rivals_missing"].items())])


def _settings(options: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    from leap.core.settings.evaluation import LatencySettings

    try:
        return LatencySettings.model_validate(options)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError("; ".join(mistakes)) from None


def _head(model: str, encoder: Any, rule: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from leap.core.environment import environment
    from leap.core.files import sha256_of

    return {
        "kind": "latency",
        "model": model if not Path(model).exists() else Path(model).name,
        "checkpoint": sha256_of(encoder.folder / "model.safetensors"),
        "exit_rule": asdict(rule),
        "environment": environment(str(encoder.device)),
    }
