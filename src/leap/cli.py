"""The `leap` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from leap.errors import UserError
from leap.progress import log_to_stderr

app = typer.Typer(
    name="leap",
    help="LEAP: sentence embeddings that may stop early.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Params = Annotated[Path, typer.Option(help="The settings file.")]


@app.callback()
def main() -> None:
    """LEAP: sentence embeddings that may stop early."""
    log_to_stderr()


@app.command()
def profile(
    name: Annotated[
        str, typer.Argument(help="A file of profiles/ without its ending: embedded, local, paper.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="dotted.key=value, laid over the profile.")
    ] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Write params.yaml from a profile."""
    from leap.profiles import switch

    switch(name, changes=changes or [], target=params)
    typer.echo(f"{params} is now the profile {name}: `dvc repro` runs it", err=True)


@app.command()
def check(params: Params = Path("params.yaml")) -> None:
    """Validate the settings; all mistakes are listed at once."""
    from leap.settings import read_settings

    settings = read_settings(params)
    typer.echo(f"{params} is right: profile {settings.profile}, {', '.join(settings.variants)}", err=True)


@app.command()
def track(params: Params = Path("params.yaml")) -> None:
    """Log to MLflow whatever the result files hold and it does not have yet."""
    from leap.settings import read_settings
    from leap.tracking import log_checkpoint

    settings = read_settings(params)
    missing = []
    for variant in settings.variants:
        for seed in settings.seeds:
            if not (Path("models") / f"{variant}-{seed}" / "model.safetensors").exists():
                missing.append(f"{variant}-{seed}")
            elif not log_checkpoint(settings, variant, seed):
                raise UserError("MLflow could not be reached: see the warning above, then run `leap track`")
    if missing:
        typer.echo(f"not trained yet: {', '.join(missing)}", err=True)


@app.command()
def summary(path: Annotated[Path, typer.Argument()] = Path("reports/summary.json")) -> None:
    """Print the summary table of the last report."""
    from leap.files import read_json
    from leap.reporting.summary import table

    typer.echo(table(read_json(path, "dvc repro")))


@app.command()
def monitor(
    reference: Annotated[str, typer.Option(help="Window file, folder or glob pattern to compare with.")],
    current: Annotated[str, typer.Option(help="Window file, folder or glob pattern to judge.")],
    target: Annotated[Path, typer.Option("--out", help="Folder for comparison.json and the picture.")] = Path(
        "reports/monitor"
    ),
    prometheus: Annotated[
        Path | None, typer.Option(help="Also write Prometheus text here, for the textfile collector.")
    ] = None,
    log: Annotated[bool, typer.Option(help="Log to MLflow, as tracking.* says.")] = True,
    params: Params = Path("params.yaml"),
) -> None:
    """Compare two windows of a served model; exit code 3 on an alert."""
    from leap.monitoring.command import compare_windows

    if compare_windows(reference, current, target, prometheus, log, params):
        raise typer.Exit(3)


def run() -> None:
    """The entry point: a user's mistake is one message and exit code 1."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
