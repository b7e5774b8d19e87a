"""The `leap` command."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leap import __version__
from leap.core.errors import UserError, missing_library
from leap.core.progress import log_to_stderr
from leap.core.storage import storage_message

app = typer.Typer(
    name="leap",
    help="LEAP: sentence encoders that exit early, where that is shown to be safe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# As the settings take them.
LAST_SEED = 2**32 - 1

Params = Annotated[Path, typer.Option(help="The settings file.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a settings file that was edited, too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]
AnyModel = Annotated[str, typer.Argument(help="A folder, an installed package or a hub id (owner/name).")]
Sentences = Annotated[
    Path | None,
    typer.Option(help="Sentences like yours: txt (one a line), parquet, csv or jsonl; else bundled ones."),
]
Column = Annotated[str | None, typer.Option(help="The column of a table; `sentence` if left out.")]
Threshold = Annotated[float | None, typer.Option(help="theta; the model's own if left out.")]
MinLayer = Annotated[int | None, typer.Option(help="l_min; the model's own if left out.")]
Patience = Annotated[int | None, typer.Option(help="k; the model's own if left out.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Texts computed together.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; else PyTorch's choice.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")]
Figures = Annotated[Path | None, typer.Option("--output", help="Where all figures go as JSON.")]


def print_version(wanted: bool) -> None:
    """Print the version and stop, where `--version` asks for it."""
    if wanted:
        typer.echo(f"leap {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """LEAP: sentence encoders that exit early, where that is shown to be safe."""
    log_to_stderr()


@app.command()
def profile(
    name: Annotated[
        str, typer.Argument(help="A file of profiles/ without its ending: embedded, local, gpu, paper.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="dotted.key=value, laid over the profile.")
    ] = None,
    force: Force = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Write params.yaml from a profile."""
    from leap.core.settings.profiles import switch

    switch(name, changes=changes or [], target=params, force=force)
    typer.echo(f"{params} is now the profile {name}: `dvc repro` runs it", err=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder of your files: text, scored pairs, BEIR folders.")],
    force: Force = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Look at your files and write params.yaml for them; say what was found and what would be dropped."""
    from leap.core.settings.profiles import start_from
    from leap.extract.initial_settings import changes_for, copy_bundled_pairs, look_at

    contents = look_at(folder)
    changes, lines = changes_for(contents, folder)
    start_from(changes, f"the settings for {folder}", params, force=force)
    if contents.lacks_pairs:
        copy_bundled_pairs(folder)
    for line in lines:
        typer.echo(line)
    typer.echo(f"{params} written: look at it, then `leap check` and `dvc repro`", err=True)


@app.command()
def check(
    params: Params = Path("params.yaml"),
    hub: Annotated[
        bool, typer.Option("--hub", help="Ask the hub for every file list and licence; nothing is fetched.")
    ] = False,
) -> None:
    """Validate the settings and look for what they name, before any work; all mistakes are listed at once."""
    from leap.core.settings import read_settings
    from leap.validate.check_command import check_settings

    settings = read_settings(params)
    for line in check_settings(settings, ask=hub):
        typer.echo(line)
    typer.echo(f"{params} is right: profile {settings.profile}, {', '.join(settings.variants)}", err=True)


@app.command()
def track(params: Params = Path("params.yaml")) -> None:
    """Make MLflow and the registry agree with the result files, as `dvc repro` does at its end."""
    from leap.core.project import Project
    from leap.core.settings import read_settings
    from leap.registry.promotion import synchronise
    from leap.registry.ui_links import ui_links

    settings = read_settings(params)
    typer.echo(ui_links(settings, synchronise(settings, Project(), required=True)["experiment"]), err=True)


@app.command()
def gate(
    evidence: Annotated[Path, typer.Argument(help="evaluations/leap-1, or evaluations for all that there are.")],
    models: Annotated[Path | None, typer.Option(help="A folder of checkpoints: compare the weights too.")] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Judge evidence again, without MLflow and without models; exit code 1 if any checkpoint is refused."""
    from leap.core.settings import read_settings
    from leap.gate.judgement import judge_folder
    from leap.gate.verdict import lines, table

    verdicts = judge_folder(read_settings(params), evidence, models)
    for verdict in verdicts:
        typer.echo(f"{table(verdict)}\n\n{lines(verdict)[-1]}\n")
    if not all(verdict["passed"] for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
def promote(
    variant: Annotated[str, typer.Argument(help="The variant's name, for example leap.")],
    seed: Annotated[int | None, typer.Option(help="The seed of its training; the first of the settings.")] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Judge a checkpoint and register it if it passes: as champion if it is better than the present one."""
    from leap.core.project import Project
    from leap.core.settings import read_settings
    from leap.gate.judgement import judge_checkpoint
    from leap.gate.verdict import lines
    from leap.registry.promotion import register
    from leap.tracking import Tracking

    settings = read_settings(params)
    tracking = Tracking.open(settings, required=True)
    chosen = settings.seeds[0] if seed is None else seed
    _, verdict = judge_checkpoint(settings, variant, chosen)
    typer.echo("\n".join(lines(verdict)))
    placed = register(tracking, Project().checkpoint(variant, chosen), verdict)
    if placed is not None:
        typer.echo(f"version {placed.version} {', '.join(placed.aliases) or '-'}: {placed.decision}")
    if not verdict["passed"]:
        raise typer.Exit(1)


@app.command()
def rollback(
    force: Annotated[bool, typer.Option("--force", help="Also to a version that the gate refuses now.")] = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Make the previous champion champion again; the two change places."""
    from leap.core.settings import read_settings
    from leap.registry.versions import rollback as roll_back
    from leap.tracking import Tracking

    placed = roll_back(Tracking.open(read_settings(params), required=True), force)
    typer.echo(f"version {placed.version} {', '.join(placed.aliases)}: {placed.decision}")


@app.command()
def history(params: Params = Path("params.yaml")) -> None:
    """List the registered versions, and who was champion when."""
    from leap.core.settings import read_settings
    from leap.registry.versions import history as versions
    from leap.registry.versions import history_text
    from leap.tracking import Tracking

    typer.echo(history_text(versions(Tracking.open(read_settings(params), required=True))))


class Form(StrEnum):
    """The forms that `leap export` writes."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    ONNX = "onnx"
    TRUNCATED = "truncated"


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A folder such as models/leap-1, or models:/leap@champion.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    to: Annotated[Form, typer.Option(help="The form.")] = Form.SENTENCE_TRANSFORMERS,
    layers: Annotated[int | None, typer.Option(help="Keep this many layers (onnx, truncated).")] = None,
    push: Annotated[str | None, typer.Option(help="Also upload it to this hub repository, owner/name.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Write a model in a form that other programs load, with its card; upload it only where --push says so."""
    from leap.registry.export_command import run_export
    from leap.registry.push_to_hub import check_repository, push_folder

    if push is not None:
        check_repository(push)
    run_export(model, out, to.value, layers, params)
    typer.echo(f"{out} written", err=True)
    if push is not None:
        typer.echo(push_folder(out, push, private=not public))


@app.command()
def summary(path: Annotated[Path, typer.Argument()] = Path("reports/summary.json")) -> None:
    """Print what the last report found: the table, the reasons of refusals, what to try next."""
    from leap.core.files import read_json
    from leap.report.findings import text

    typer.echo(text(read_json(path, "dvc repro")))


@app.command()
def retrofit(
    model: AnyModel,
    sentences: Annotated[Path, typer.Option(help="Sentences like yours: txt, parquet, csv or jsonl.")],
    output: Annotated[Path, typer.Option(help="The new model's folder.")],
    column: Column = None,
    query_layer: Annotated[
        int | None, typer.Option(min=1, help="Where queries leave; else the earliest shown to keep --keep.")
    ] = None,
    keep: Annotated[
        float, typer.Option(help="The share of a query's ten nearest documents that stays, by 95 % confidence.")
    ] = 0.8,
    epochs: Annotated[int | None, typer.Option(min=1, help="Else 5 on a CPU, 10 on a GPU.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Else 64 on a CPU, 1024 on a GPU.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Else by the width: 2e-3 at 384, 7e-4 at 768.")
    ] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Of the order of the batches.")] = 1,
) -> None:
    """Teach a model that you have to exit: its index stays, its queries leave early (docs/training.md)."""
    from leap.latency.retrofit_command import run_retrofit

    options = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    try:
        shown = run_retrofit(model, sentences, output, column, options, query_layer, keep, device, seed)
    except KeyboardInterrupt:
        typer.echo("stopped: run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    typer.echo(shown)
    typer.echo(f"{output} written; encode_document and encode are at full depth", err=True)


@app.command()
def calibrate(
    model: AnyModel,
    sentences: Annotated[
        Path | None, typer.Option(help="Held-out sentences: txt (one a line), parquet, csv, tsv or jsonl.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Instead of sentences: held-out queries; goes with --documents.")
    ] = None,
    documents: Annotated[Path | None, typer.Option(help="The documents that the queries search.")] = None,
    column: Column = None,
    floor: Annotated[
        float | None,
        typer.Option(help="For --sentences: the lowest cosine to full depth that is good enough; else 0.94."),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(help="For --sentences: the largest share of exited vectors below the floor; else 0.05."),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="The mean share of the ten nearest that must stay; else 0.8, of documents 0.9."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure that must be.")] = 0.95,
    heads: Annotated[bool, typer.Option("--heads", help="Fit exit heads too: a linear map a layer.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write a calibrated copy here; else into the folder itself.")
    ] = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    seed: Annotated[
        int, typer.Option(min=0, max=LAST_SEED, help="Of the parts that the sentences are split into.")
    ] = 17,
) -> None:
    """Find exits, or a layer for queries, that are shown to be safe on held-out text (docs/exits.md)."""
    from leap.exits.calibrate import calibrate_folder as command
    from leap.exits.calibrate.query_layer import QueryDemand, calibrate_queries, describe_queries
    from leap.exits.calibrate.risk import Demand

    options: dict[str, Any] = {
        "column": column,
        "with_heads": heads,
        "output": output,
        "batch_size": batch_size,
        "device": device,
        "seed": seed,
    }
    if sentences is not None and queries is None and documents is None:
        given = {"floor": floor, "risk": risk, "keep": keep, "confidence": confidence}
        demand = Demand(**{name: value for name, value in given.items() if value is not None})
        calibrated = command.calibrate_folder(command.calibrate, model, [sentences], demand, **options)
        lines = command.describe(calibrated)
    elif sentences is None and queries is not None and documents is not None:
        for name, value in (("floor", floor), ("risk", risk)):
            if value is not None:
                raise UserError(f"--{name} is for --sentences: queries are judged by --keep, leave it out")
        wanted = QueryDemand(0.9 if keep is None else keep, confidence)
        files = [queries, documents]
        lines = describe_queries(command.calibrate_folder(calibrate_queries, model, files, wanted, **options))
    else:
        raise UserError("give --sentences alone, or --queries together with --documents")
    typer.echo("\n".join(lines))


@app.command()
def doctor(
    model: AnyModel,
    sentences: Sentences = None,
    column: Column = None,
    threshold: Threshold = None,
    min_layer: MinLayer = None,
    patience: Patience = None,
    page: Annotated[Path, typer.Option(help="Where the page with the pictures goes.")] = Path("doctor.html"),
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Say whether a model can exit early: the paper's diagnostics, false convergence, a verdict in words."""
    from leap.doctor.doctor_command import run_doctor

    typer.echo(run_doctor(model, sentences, column, (threshold, min_layer, patience), page, as_json, device))


@app.command()
def latency(
    model: AnyModel,
    sentences: Sentences = None,
    column: Column = None,
    threshold: Threshold = None,
    min_layer: MinLayer = None,
    batch_size: Annotated[list[int], typer.Option(help="Several times.")] = [1, 8, 32],  # noqa: B006
    length: Annotated[list[str], typer.Option(help="'sentences', or tokens a row; several times.")] = [  # noqa: B006
        "sentences",
    ],
    warmup: int = 50,
    iterations: int = 200,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32, or fp16 on a card.")] = "fp32",
    quantize: Annotated[str | None, typer.Option(help="int8, on a CPU.")] = None,
    path: Annotated[str, typer.Option(help="auto, or how to compute: eager, fused, graphs.")] = "auto",
    threads: Threads = None,
    output: Figures = None,
) -> None:
    """Time full depth, exits, checks without exits and every layer; keep the machine idle meanwhile."""
    from leap.core.files import must_be_new
    from leap.doctor.doctor_sentences import sample
    from leap.latency.latency_table import MARK, latency_settings, set_threads, table, time_model

    if output is not None:
        must_be_new(output, mark=MARK)
    protocol = {"warmup": warmup, "iterations": iterations, "device": device, "precision": precision}
    settings = latency_settings(batch_sizes=batch_size, lengths=length, **protocol)
    texts = sample(sentences, column).sentences
    set_threads(threads)
    typer.echo(table(time_model(model, texts, settings, threshold, min_layer, quantize, path, output)))


@app.command()
def encode(
    model: AnyModel,
    file: Annotated[Path, typer.Argument(help="Texts: txt (one a line), parquet, csv, tsv or jsonl.")],
    out: Annotated[Path, typer.Argument(help="The file to write, .parquet or .npy; it must not exist.")],
    column: Column = None,
    input_type: Annotated[str | None, typer.Option(help="query or document: its prompt and its rule.")] = None,
    strategy: Annotated[str | None, typer.Option(help="As in LeapEncoder.encode; full: no exits.")] = None,
    threshold: Threshold = None,
    layer: Annotated[int | None, typer.Option(help="Every text leaves here (strategy fixed).")] = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
) -> None:
    """Encode a file of texts to a file of vectors, in its order."""
    from leap.serve.bulk import run_encode

    options = {"input_type": input_type, "strategy": strategy, "threshold": threshold, "layer": layer}
    found = run_encode(model, file, out, column, batch_size, device, options)
    typer.echo(f"{out}: {found['texts']} vectors, {found['expected_layers']:.2f} layers a text", err=True)


@app.command()
def evaluate(
    model: AnyModel,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Scored pairs: csv, tsv, jsonl or parquet with sentence1, sentence2, score."),
    ] = None,
    collection: Annotated[Path | None, typer.Option(help="A BEIR folder: corpus, queries, qrels.")] = None,
    names: Annotated[
        str, typer.Option("--columns", help="The names of the three columns of the pairs.")
    ] = "sentence1,sentence2,score",
    task: Annotated[
        str, typer.Option(help="similarity (scores of 0 to 5), or duplicates (0 or 1).")
    ] = "similarity",
    split: Annotated[str, typer.Option(help="Of the collection's judgements.")] = "test",
    skip_own_id: Annotated[
        bool, typer.Option("--skip-own-id", help="Queries are documents too (ArguAna, Quora).")
    ] = False,
    output: Figures = None,
    device: Device = "auto",
) -> None:
    """Measure any model on pairs and a collection of your own, by the pipeline's figures and intervals."""
    from leap.evaluate.evaluate_files import run_evaluate

    called = [name.strip() for name in names.split(",")]
    for shown in run_evaluate(model, pairs, called, task, collection, split, skip_own_id, output, device):
        typer.echo(shown)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A folder, package or hub id, or models:/NAME@champion.")],
    host: Annotated[str, typer.Option(help="0.0.0.0 answers other machines, without TLS or users.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="What requests call the model; else its folder's name.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Texts encoded together.")] = 64,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait; beyond them: 503.")] = 4096,
    threads: Threads = None,
    device: Device = "auto",
    params: Params = Path("params.yaml"),
) -> None:
    """Serve a model over HTTP as OpenAI's /v1/embeddings, with /metrics and /health (docs/serving.md)."""
    from leap.latency.latency_table import set_threads
    from leap.registry.serve_command import run_serve

    set_threads(threads)
    run_serve(model, name, params, device, host=host, port=port, max_batch=max_batch, max_queue=max_queue)


@app.command()
def cost(
    latency: Annotated[Path, typer.Argument(help="A measured latency.json.")] = Path(
        "evaluations/leap-1/latency.json"
    ),
    daily: Annotated[int, typer.Option(min=1, help="Texts embedded a day.")] = 1_000_000,
    batch_size: Annotated[int, typer.Option(min=1, help="At which they are served.")] = 1,
    training_hours: Annotated[
        float | None, typer.Option(min=0, help="Machine hours of the training; else the measured ones.")
    ] = None,
    training_price: Annotated[float, typer.Option(min=0, help="Of an hour of the training machine.")] = 1.0,
    serving_price: Annotated[float, typer.Option(min=0, help="Of an hour of the serving machine.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Estimate when the training for early exit is paid back: latency, volume, training cost."""
    from leap.latency.cost import run_cost

    prices = (training_price, serving_price)
    typer.echo(run_cost(latency, daily, batch_size, training_hours, prices, as_json))


@app.command()
def monitor(
    reference: Annotated[str, typer.Option(help="Window file, folder or glob pattern to compare with.")],
    current: Annotated[str, typer.Option(help="Window file, folder or glob pattern to judge.")],
    output: Annotated[Path, typer.Option(help="Folder for comparison.json.")] = Path("reports/monitor"),
    prometheus: Annotated[
        Path | None, typer.Option(help="Also write Prometheus text here, for the textfile collector.")
    ] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Compare two windows of a served model; exit code 3 on an alert."""
    from leap.serve.monitor_command import compare_windows

    if compare_windows(reference, current, output, prometheus, params):
        raise typer.Exit(3)


def run() -> None:
    """The entry point: a user's mistake is one message and exit code 1."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        typer.echo(f"error: {missing_library(error)}", err=True)
        sys.exit(1)
    except OSError as error:
        message = storage_message(error)
        if message is None:
            raise
        typer.echo(f"error: {message}", err=True)
        sys.exit(1)
