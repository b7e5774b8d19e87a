"""The `leap` command."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leap import __version__
from leap.core.errors import UserError
from leap.core.progress import log_to_stderr
from leap.core.storage import storage_message

app = typer.Typer(
    name="leap",
    help="LEAP: sentence embeddings that may stop early.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Params = Annotated[Path, typer.Option(help="The settings file.")]


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
    """LEAP: sentence embeddings that may stop early."""
    log_to_stderr()


@app.command()
def profile(
    name: Annotated[
        str, typer.Argument(help="A file of profiles/ without its ending: embedded, local, gpu, paper.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="dotted.key=value, laid over the profile.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a settings file that was edited, too.")] = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Write params.yaml from a profile."""
    from leap.core.settings.profiles import switch

    switch(name, changes=changes or [], target=params, force=force)
    typer.echo(f"{params} is now the profile {name}: `dvc repro` runs it", err=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder of your files: text, scored pairs, BEIR folders.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a settings file that was edited, too.")] = False,
    params: Params = Path("params.yaml"),
) -> None:
    """Look at your files and write params.yaml for them; say what was found and what would be dropped."""
    from leap.core.settings.profiles import start_from
    from leap.extract.initial_settings import changes_for, look_at

    changes, lines = changes_for(look_at(folder), folder)
    start_from(changes, f"the settings for {folder}", params, force=force)
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
    evidence: Annotated[
        Path, typer.Option(help="A folder of evidence: evaluations/leap-1, or evaluations for all of them.")
    ],
    models: Annotated[
        Path | None,
        typer.Option(help="A folder of checkpoints: compare the weights too."),
    ] = None,
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
    """What `leap export` writes."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    ONNX = "onnx"
    TRUNCATED = "truncated"


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A folder such as models/leap-1, or models:/NAME@champion.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    to: Annotated[Form, typer.Option(help="The form.")],
    layers: Annotated[int | None, typer.Option(help="Keep this many layers (onnx, truncated).")] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Write a model in a form that other programs load, with its card."""
    import tempfile

    from leap.core.files import must_be_new
    from leap.core.settings import read_settings
    from leap.registry.export_folder import export_truncated, export_whole
    from leap.registry.export_source import card_of, model_folder

    if to is Form.SENTENCE_TRANSFORMERS and layers is not None:
        raise UserError(f"--to {to} writes all layers: leave out --layers, or name --to truncated or --to onnx")
    if to is not Form.SENTENCE_TRANSFORMERS and layers is None:
        raise UserError(f"--to {to} needs --layers K, the number of layers to keep, for example --layers 6")
    must_be_new(out)
    settings = read_settings(params) if params.exists() else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(model, settings, Path(scratch))
        card = card_of(folder, settings)
        if layers is None:
            export_whole(folder, out, card)
        elif to is Form.ONNX:
            from leap.registry.export_onnx import export_onnx

            export_onnx(folder, layers, out, card)
        else:
            export_truncated(folder, layers, out, card)
    typer.echo(f"{out} written", err=True)


@app.command()
def summary(path: Annotated[Path, typer.Argument()] = Path("reports/summary.json")) -> None:
    """Print what the last report found: the table, the reasons of refusals, what to try next."""
    from leap.core.files import read_json
    from leap.report.findings import text

    typer.echo(text(read_json(path, "dvc repro")))


@app.command()
def retrofit(
    model: Annotated[str, typer.Argument(help="A folder, an installed package or a hub id (owner/name).")],
    sentences: Annotated[Path, typer.Option(help="Sentences like yours: txt, parquet, csv or jsonl.")],
    output: Annotated[Path, typer.Option(help="The new model's folder.")],
    column: Annotated[
        str | None, typer.Option(help="The column of a table.  [default: sentence]", show_default=False)
    ] = None,
    query_layer: Annotated[
        int | None, typer.Option(min=1, help="Where queries leave.  [default: half the depth]", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="[default: 1 on a CPU, 10 on a GPU]", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="[default: 64 on a CPU, 1024 on a GPU]", show_default=False)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="[default: 1e-3 on a CPU, 2e-3 on a GPU]", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the order of the batches.")] = 1,
) -> None:
    """Teach a model that you have to exit: its index stays, its queries leave early (docs/training.md)."""
    from dataclasses import replace

    from leap.core.files import must_be_new
    from leap.exits import LeapEncoder
    from leap.exits.calibrate.calibrate_folder import read_column
    from leap.latency.retrofit_table import measure_retrofit, table
    from leap.models.find import find_model
    from leap.train.retrofit import Training, hold_out
    from leap.train.retrofit import retrofit as train_retrofit

    must_be_new(output)
    folder = find_model(model)
    training_text, queries, documents = hold_out(read_column(sentences, column))
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    training = replace(Training.of(device), **chosen)
    try:
        train_retrofit(folder, training_text, output, training, query_layer=query_layer, device=device, seed=seed)
    except KeyboardInterrupt:
        typer.echo("stopped: run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    after, before = LeapEncoder(output, device), LeapEncoder(folder, device)
    typer.echo(table(measure_retrofit(after, before, queries, documents)))
    typer.echo(f"{output} written; encode_query leaves early, encode_document and encode at full depth", err=True)


@app.command()
def calibrate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    sentences: Annotated[
        Path | None, typer.Option(help="Held-out sentences: txt (one a line), parquet, csv, tsv or jsonl.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Instead of sentences: held-out queries; goes with --documents.")
    ] = None,
    documents: Annotated[Path | None, typer.Option(help="The documents that the queries search.")] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of a table.  [default: sentence]", show_default=False)
    ] = None,
    floor: Annotated[float, typer.Option(help="The lowest cosine to full depth that is good enough.")] = 0.94,
    risk: Annotated[float, typer.Option(help="The largest share of exited vectors below the floor.")] = 0.05,
    keep: Annotated[
        float | None,
        typer.Option(
            help="The mean share of the ten nearest that must stay.  [default: 0.8, of documents 0.9]",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure that must be.")] = 0.95,
    heads: Annotated[bool, typer.Option("--heads", help="Fit exit heads too: a linear map a layer.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write a calibrated copy here; else into the folder itself.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the parts that the sentences are split into.")] = 17,
) -> None:
    """Find exits, or a layer for queries, that are shown to be safe on held-out text (docs/exits.md)."""
    from leap.exits.calibrate.calibrate_folder import calibrate_folder, describe
    from leap.exits.calibrate.query_layer import QueryDemand, calibrate_queries_of_folder, describe_queries
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
        demand = Demand(floor, risk, confidence, 0.8 if keep is None else keep)
        found = describe(calibrate_folder(model, sentences, demand, **options))
    elif sentences is None and queries is not None and documents is not None:
        wanted = QueryDemand(0.9 if keep is None else keep, confidence)
        found = describe_queries(calibrate_queries_of_folder(model, queries, documents, wanted, **options))
    else:
        raise UserError("give --sentences alone, or --queries together with --documents")
    typer.echo("\n".join(found))


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="A folder, an installed package or a hub id (owner/name).")],
    sentences: Annotated[
        Path | None,
        typer.Option(help="Your sentences: txt (one a line), parquet, csv, tsv or jsonl; else bundled ones."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column of a table; `sentence` if left out.")] = None,
    threshold: Annotated[float | None, typer.Option(help="theta; the model's own or 0.95.")] = None,
    min_layer: Annotated[int | None, typer.Option(help="l_min; the model's own or half its depth.")] = None,
    patience: Annotated[int | None, typer.Option(help="k; the model's own or 1.")] = None,
    page: Annotated[Path, typer.Option(help="Where the page with the pictures goes.")] = Path("doctor.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
) -> None:
    """Say whether a model can exit early: the paper's diagnostics, false convergence, a verdict in words."""
    import json

    from leap.core.files import must_be_new, whole_file
    from leap.doctor.doctor_sentences import sample
    from leap.doctor.doctor_text import lines
    from leap.doctor.examine import default_rule, examined
    from leap.exits import ExitRule, LeapEncoder
    from leap.models.find import find_model

    must_be_new(page, mark='<meta name="generator" content="leap doctor">')
    chosen = sample(sentences, column)
    encoder = LeapEncoder(find_model(model), device)
    own = default_rule(encoder)
    rule = ExitRule(
        own.threshold if threshold is None else threshold,
        own.min_layer if min_layer is None else min_layer,
        own.patience if patience is None else patience,
    )
    found = examined(model, encoder, chosen, rule)
    pictures: str | None = str(page)
    try:
        from leap.doctor.doctor_page import render
    except ModuleNotFoundError as error:  # the verdict needs no picture
        typer.echo(f"no page with pictures: {install(error)}", err=True)
        pictures = None
    else:
        with whole_file(page) as part:
            part.write_text(render(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**found, "page": pictures}, indent=2, allow_nan=False))
        return
    typer.echo("\n".join([*lines(found), *([f"\npictures: {page}"] if pictures else [])]))


@app.command()
def latency(
    model: Annotated[str, typer.Argument(help="A model folder, an installed package or a hub id.")],
    sentences: Annotated[
        Path | None,
        typer.Option(help="Your sentences: txt (one a line), parquet, csv, tsv or jsonl; else bundled ones."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column of a table; `sentence` if left out.")] = None,
    threshold: Annotated[float | None, typer.Option(help="theta; the folder's own if left out.")] = None,
    min_layer: Annotated[int | None, typer.Option(help="l_min; the folder's own if left out.")] = None,
    batch: Annotated[list[int], typer.Option(help="Batch size, several times.")] = [1, 8, 32],  # noqa: B006
    length: Annotated[list[str], typer.Option(help="'sentences', or tokens a row; several times.")] = [  # noqa: B006
        "sentences",
    ],
    warmup: int = 50,
    iterations: int = 200,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, or fp16 on a card.")] = "fp32",
    quantize: Annotated[str | None, typer.Option(help="int8, on a CPU.")] = None,
    path: Annotated[str, typer.Option(help="auto, or how to compute: eager, fused, graphs.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; else PyTorch's choice.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the figures go as JSON.")] = None,
) -> None:
    """Time full depth, exits, checks without exits and every layer; keep the machine idle meanwhile."""
    import torch

    from leap.core.environment import environment
    from leap.core.files import must_be_new, write_json
    from leap.doctor.doctor_sentences import sample
    from leap.exits import ExitRule, LeapEncoder
    from leap.latency.latency_table import latency_settings, table
    from leap.latency.timing import latency_figures

    if out is not None:
        must_be_new(out, mark='"kind": "leap latency"')
    settings = latency_settings(
        batch_sizes=batch,
        lengths=length,
        warmup=warmup,
        iterations=iterations,
        device=device,
        precision=precision,
    )
    chosen = sample(sentences, column).sentences
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
    figures = latency_figures(encoder, chosen, rule, settings, seed=17)
    if out is not None:
        head = {"kind": "leap latency", "model": model, "exit_rule": vars(rule)}
        write_json(out, {**head, "environment": environment(str(encoder.device)), **figures})
    typer.echo(table(figures))


@app.command()
def encode(
    model: Annotated[str, typer.Argument(help="A model folder, an installed package or a hub id (owner/name).")],
    file: Annotated[Path, typer.Argument(help="Texts: txt (one a line), parquet, csv, tsv or jsonl.")],
    out: Annotated[Path, typer.Argument(help="The file to write, .parquet or .npy; it must not exist.")],
    column: Annotated[
        str | None, typer.Option(help="The column of a table.  [default: sentence]", show_default=False)
    ] = None,
    input_type: Annotated[str | None, typer.Option(help="query or document: its prompt and its rule.")] = None,
    strategy: Annotated[str | None, typer.Option(help="As in LeapEncoder.encode; full: no exits.")] = None,
    threshold: Annotated[float | None, typer.Option(help="theta; the model's own if left out.")] = None,
    layer: Annotated[int | None, typer.Option(help="Every text leaves here (strategy fixed).")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
) -> None:
    """Encode a file of texts to a file of vectors, in its order."""
    from leap.core.files import must_be_new
    from leap.exits import LeapEncoder
    from leap.exits.calibrate.calibrate_folder import read_column
    from leap.serve.bulk import check_ending, encode_file

    check_ending(out)
    must_be_new(out)
    texts = read_column(file, column)
    options = {"input_type": input_type, "strategy": strategy, "threshold": threshold, "layer": layer}
    if layer is not None and strategy is None:
        options["strategy"] = "fixed"
    given = {name: value for name, value in options.items() if value is not None}
    try:
        found = encode_file(LeapEncoder(model, device), texts, out, batch_size, **given)
    except ValueError as error:
        raise UserError(str(error)) from None
    typer.echo(f"{out}: {found['texts']} vectors, {found['expected_layers']:.2f} layers a text", err=True)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, an installed package or a hub id (owner/name).")],
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
    out: Annotated[Path | None, typer.Option(help="Where all figures go as JSON.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
) -> None:
    """Measure any model on pairs and a collection of your own, by the pipeline's figures and intervals."""
    from leap.core.columns import columns
    from leap.core.files import must_be_new, write_json
    from leap.evaluate.evaluate_files import evaluate_collection, evaluate_pairs, retrieval_rows, sts_rows
    from leap.exits import LeapEncoder

    if pairs is None and collection is None:
        raise UserError("nothing to evaluate on: give --pairs FILE, --collection FOLDER, or both")
    called = [name.strip() for name in names.split(",")]
    if len(called) != 3 or task not in ("similarity", "duplicates"):
        raise UserError("--columns takes three names with commas between them, --task similarity or duplicates")
    if out is not None:
        must_be_new(out, mark='"kind": "leap evaluate"')
    encoder = LeapEncoder(model, device)
    figures: dict[str, Any] = {"kind": "leap evaluate", "model": model, "exit_rule": vars(encoder.rule)}
    if pairs is not None:
        mapped = dict(zip(("sentence1", "sentence2", "score"), called, strict=True))
        figures["pairs"] = evaluate_pairs(encoder, pairs, mapped, task)
        typer.echo(columns(sts_rows(figures["pairs"])))
    if collection is not None:
        figures["collection"] = evaluate_collection(encoder, collection, split, skip_own_id)
        typer.echo(columns(retrieval_rows(figures["collection"])))
    if out is not None:
        write_json(out, figures)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A folder, package or hub id, or models:/NAME@champion.")],
    host: Annotated[str, typer.Option(help="0.0.0.0 answers other machines, without TLS or users.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="What requests call the model; else its folder's name.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Texts encoded together.")] = 64,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait; beyond them: 503.")] = 4096,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; else PyTorch's choice.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = "auto",
    params: Params = Path("params.yaml"),
) -> None:
    """Serve a model over HTTP as OpenAI's /v1/embeddings, with /metrics and /health (docs/serving.md)."""
    import tempfile

    import torch

    from leap.exits import LeapEncoder
    from leap.serve import Monitor
    from leap.serve.http_server import serve as serve_http

    with tempfile.TemporaryDirectory() as scratch:
        folder: str | Path = model
        if model.startswith("models:/"):
            from leap.core.settings import read_settings
            from leap.registry.export_source import model_folder

            folder = model_folder(model, read_settings(params), Path(scratch))
        if threads is not None:
            torch.set_num_threads(threads)
        encoder = LeapEncoder(folder, device)
        encoder.monitor = Monitor.from_environment(encoder)
        called = name or encoder.folder.name
        typer.echo(f"serving {called} on http://{host}:{port}/v1/embeddings", err=True)
        serve_http(encoder, called, host=host, port=port, max_batch=max_batch, max_queue=max_queue)


@app.command()
def cost(
    latency: Annotated[Path, typer.Argument(help="A measured latency.json.")] = Path(
        "evaluations/leap-1/latency.json"
    ),
    daily: Annotated[int, typer.Option(min=1, help="Texts embedded a day.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="At which batch size they are served.")] = 1,
    training_hours: Annotated[
        float | None, typer.Option(min=0, help="Machine hours of the training; else the measured ones.")
    ] = None,
    training_price: Annotated[float, typer.Option(min=0, help="Of an hour of the training machine.")] = 1.0,
    serving_price: Annotated[float, typer.Option(min=0, help="Of an hour of the serving machine.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Estimate when the training for early exit is paid back: latency, volume, training cost."""
    import json

    from leap.core.files import read_json
    from leap.latency.cost import Spending, amortisation, lines

    measured = read_json(latency, "dvc repro")
    if training_hours is None:
        training = read_json(latency.parent / "training" / "training.json", "dvc repro")
        training_hours = training["seconds"] / 3600
    spending = Spending(daily, training_hours, training_price, serving_price)
    found = amortisation(measured, batch, spending)
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    environment = measured["environment"]
    machine = f"{environment.get('card') or environment['cpu']} ({environment['cores']} cores)"
    typer.echo("\n".join(lines(found, spending, batch, machine)))


@app.command()
def monitor(
    reference: Annotated[str, typer.Option(help="Window file, folder or glob pattern to compare with.")],
    current: Annotated[str, typer.Option(help="Window file, folder or glob pattern to judge.")],
    target: Annotated[Path, typer.Option("--out", help="Folder for comparison.json.")] = Path("reports/monitor"),
    prometheus: Annotated[
        Path | None, typer.Option(help="Also write Prometheus text here, for the textfile collector.")
    ] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Compare two windows of a served model; exit code 3 on an alert."""
    from leap.core.files import must_be_new
    from leap.serve.monitor_command import compare_windows

    must_be_new(target / "comparison.json", mark='"kind": "comparison"')
    if prometheus is not None:
        must_be_new(prometheus, mark="# HELP leap_")
    if compare_windows(reference, current, target, prometheus, params):
        raise typer.Exit(3)


def install(error: ModuleNotFoundError) -> str:
    """Say how to get a library that only some commands need."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "leap"):
        raise error
    extra = {"onnx": "export", "onnxscript": "export", "onnxruntime": "bench", "pyspark": "bulk"}
    extra |= dict.fromkeys(("fastapi", "uvicorn", "starlette", "prometheus_client"), "serve")
    return f"{module} is missing: pip install 'leap-pipeline[{extra.get(module, 'pipeline')}]'"


def run() -> None:
    """The entry point: a user's mistake is one message and exit code 1."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        typer.echo(f"error: {install(error)}", err=True)
        sys.exit(1)
    except OSError as error:
        message = storage_message(error)
        if message is None:
            raise
        typer.echo(f"error: {message}", err=True)
        sys.exit(1)
