"""The model card: README.md with the hub's front matter, every figure with where it comes from.

The front matter is the hub's (huggingface.co/docs/hub/model-cards); scores of a data set go into
`model-index`.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from leap.core.environment import hardware
from leap.core.settings import Settings
from leap.core.settings.sources import HubModel, HubText, PackageModel, PackageText
from leap.evidence.evidence_file import Evidence
from leap.gate.metrics import query_layer_alone, query_row

TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "early-exit"]


def model_card(settings: Settings, evidence: Evidence, verdict: dict[str, Any]) -> str:
    """The card of one checkpoint.

    Args:
        settings: the data, the teacher, and `gate.card`.
        evidence: what was measured on it.
        verdict: the gate's; its reasons are in the card.
    """
    name = f"{settings.registered_model}-{evidence.variant}-{evidence.seed}"
    sections = [
        _opening(name, settings, evidence),
        "## Use\n\n" + USAGE.format(name=name),
        "## Exits\n\n" + _exit_table(settings, evidence),
        "## Quality\n\n" + _quality_table(evidence),
        "## Gate\n\n" + _checks(verdict),
        "## Where the figures come from\n\n" + _provenance(evidence, verdict),
        "## Data and licences\n\n" + _data(settings),
        "## Limits\n\n" + LIMITS,
    ]
    return with_front_matter(_front_matter(name, settings, evidence), "\n\n".join(sections))


def plain_card(name: str) -> str:
    """Return the card of a model that the gate has not judged: how it is used, and no figures."""
    front = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": list(TAGS)}
    opening = (
        f"# {name}\n\nA sentence encoder that may exit early (LEAP, Layer-wise Exit-Aware Pretraining). The gate "
        "has not judged it, so this card has no figures."
    )
    return with_front_matter(front, "\n\n".join([opening, "## Use", USAGE.format(name=name), "## Limits", LIMITS]))


def with_front_matter(front: dict[str, Any], body: str) -> str:
    """Return a card of its front matter and its text."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**front)}\n---\n\n{body}\n"


def front_matter(card: str) -> dict[str, Any]:
    """Return the front matter of a card; empty where it has none."""
    from huggingface_hub import ModelCard

    return dict(ModelCard(card, ignore_metadata_errors=True).data.to_dict())  # type: ignore[no-untyped-call]


USAGE = """\
With exits, by the `leap` package (`pip install leap-pipeline` from the project's source):

```python
from leap.exits import LeapEncoder

model = LeapEncoder("{name}")
vectors, layers = model.encode(["How do I sort a list?"], return_exit_layers=True)
```

At full depth, in any program that loads sentence-transformers or Hugging Face folders:

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("{name}").encode(["How do I sort a list?"])
```"""

LIMITS = """\
How much an early exit costs depends on the task: measure it on your own text before you rely on it. The
paper's LEAP model loses 24.7 % nDCG@10 on ArguAna (argument retrieval) while other collections hardly change.
Vectors of different layers may be compared with each other; vectors of another model may not."""


def _opening(name: str, settings: Settings, evidence: Evidence) -> str:
    variant = settings.variants[evidence.variant]
    diagnose = evidence.diagnose or {}
    exits = diagnose.get("exit", {})
    layer = query_layer_alone(evidence)
    if layer is not None:
        return (
            f"# {name}\n\n"
            f"A sentence encoder of {diagnose.get('depth')} layers whose queries leave early (`encode_query`, at "
            f"layer {layer}) and search documents at full depth (`encode_document`, `encode`).\n\n"
            f"Variant `{evidence.variant}` ({variant.description}), seed {evidence.seed}."
        )
    return (
        f"# {name}\n\n"
        f"A sentence encoder of {diagnose.get('depth')} layers that may stop early (LEAP, Layer-wise "
        f"Exit-Aware Pretraining): a sentence leaves at the first layer where its vector has stopped moving. "
        f"Here {_shown(exits.get('rate'), 1, 100)} % of {diagnose.get('n')} sentences leave before the last "
        f"layer, after {_shown(exits.get('expected_layers'), 2)} layers on average.\n\n"
        f"Variant `{evidence.variant}` ({variant.description}), seed {evidence.seed}."
    )


def _front_matter(name: str, settings: Settings, evidence: Evidence) -> dict[str, Any]:
    card, teacher = settings.gate.card, settings.teacher
    base = card.base_model or (teacher.repo if isinstance(teacher, HubModel) else None)
    sources = settings.data.sources.values()
    datasets = sorted({source.repo for source in sources if isinstance(source, HubText)})
    return {
        "language": list(card.language),
        "license": card.license,
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "base_model": base,
        "datasets": datasets or None,
        "tags": list(TAGS),
        "model_name": name,
        "eval_results": _results(settings, evidence),
    }


def _results(settings: Settings, evidence: Evidence) -> list[Any]:
    """Return every score, with exits and at full depth, as huggingface_hub's EvalResult."""
    from huggingface_hub import EvalResult

    kinds = (
        ("semantic-similarity", "Semantic similarity", "spearman_cosine", "spearman", "similarity", evidence.sts),
        ("information-retrieval", "Retrieval", "cosine_ndcg@10", "ndcg_at_10", "retrieval", evidence.retrieval),
    )
    return [
        EvalResult(
            task_type=task,
            task_name=task_name,
            dataset_type=getattr(getattr(settings, block).get(name), "repo", name),
            dataset_name=name,
            metric_type=metric,
            metric_value=round(content[f"{figure}_{mode}"], 4),
            metric_name=f"{metric} ({words})",
        )
        for task, task_name, metric, figure, block, sets in kinds
        for name, content in sorted(sets.items())
        for mode, words in (("exit", "with exits"), ("full", "full depth"))
        if content.get(f"{figure}_{mode}") is not None
    ]


def _exit_table(settings: Settings, evidence: Evidence) -> str:
    diagnose = evidence.diagnose or {}
    rule = diagnose.get("exit_rule", {})
    counts = diagnose.get("exit", {}).get("layers", {})
    scores = evidence.sts.get(settings.evaluation.primary_set, {}).get("spearman_by_layer", [])
    rows = [
        (
            str(row["layer"]),
            _shown(counts.get(str(row["layer"]), 0) / diagnose["n"], 1, 100) + " %",
            _shown(row.get("similarity_to_final")),
            _shown(row.get("nn_at_10")),
            _shown(scores[row["layer"] - 1] if row["layer"] <= len(scores) else None),
        )
        for row in diagnose.get("layers", [])
    ]
    primary = settings.evaluation.primary_set
    head = (
        "layer",
        "sentences that leave here",
        "similarity to the last layer",
        "NN@10",
        f"Spearman, {primary}",
    )
    return (
        f"A sentence leaves at layer l if cos(p_l, p_(l-{rule.get('patience')})) >= {rule.get('threshold')}, "
        f"from layer {rule.get('min_layer')} on.\n\n" + _table(head, rows)
    )


def _quality_table(evidence: Evidence) -> str:
    rows = [
        (
            name,
            "Spearman",
            _shown(item.get("spearman_full")),
            _shown(item.get("spearman_exit")),
            "",
            str(item.get("n")),
        )
        for name, item in sorted(evidence.sts.items())
    ]
    rows += [
        (
            name,
            "nDCG@10",
            _shown(item.get("ndcg_at_10_full")),
            _shown(item.get("ndcg_at_10_exit")),
            _shown(item.get("ndcg_at_10_query_exit")),
            f"{item.get('n_queries')} queries, {item.get('n_documents')} documents",
        )
        for name, item in sorted(evidence.retrieval.items())
    ]
    return _table(("data set", "measure", "full depth", "with exits", "queries exit", "n"), rows)


def _checks(verdict: dict[str, Any]) -> str:
    outcome = "passes" if verdict["passed"] else "is refused"
    rows = [
        (
            check["name"],
            check["scope"],
            check["reason"],
            "yes" if check["passed"] else f"no ({check['severity']})",
        )
        for check in verdict["checks"]
    ]
    return f"The model {outcome}.\n\n" + _table(("check", "judged on", "finding", "passed"), rows)


def _provenance(evidence: Evidence, verdict: dict[str, Any]) -> str:
    latency = evidence.latency or {}
    bound, early = verdict["bound_to"], query_row(latency) or latency
    files = "\n".join(f"- `{name}`: sha256 `{digest}`" for name, digest in sorted(bound["data"].items()))
    return (
        f"Weights: sha256 `{evidence.checkpoint}`. Measured by code of commit "
        f"{', '.join(bound['commits'])}. Speed-up {_shown(early.get('speed_up'), 2)}x of "
        f"{'queries' if query_row(latency) else 'exits'} over full depth, one sentence at a time, on "
        f"{hardware(latency.get('environment', {}))}. Data that were measured on:\n\n{files}"
    )


def _data(settings: Settings) -> str:
    rows = []
    for name, source in settings.data.sources.items():
        licence = settings.gate.card.data_licenses.get(name)
        if isinstance(source, PackageText):
            rows += [
                (name, f"docstrings of the package {package}", licence or package_licence(package))
                for package in source.packages
            ]
        elif isinstance(source, HubText):
            where = f"[{source.repo}](https://huggingface.co/datasets/{source.repo}) at {source.revision[:12]}"
            rows.append((name, where, licence or "see its page"))
        else:
            rows.append((name, "local files", licence or "not stated"))
    return "Trained on:\n\n" + _table(("source", "what it is", "licence"), rows) + "\n\n" + _teacher(settings)


def _teacher(settings: Settings) -> str:
    teacher = settings.teacher
    if isinstance(teacher, HubModel):
        return f"Teacher: [{teacher.repo}](https://huggingface.co/{teacher.repo}) at {teacher.revision[:12]}."
    if isinstance(teacher, PackageModel):
        licence = package_licence(teacher.package)
        return f"Teacher: the weights in the package {teacher.package} (its licence: {licence})."
    return "Teacher: a local model."


def package_licence(package: str) -> str:
    """The licence that an installed package's metadata name."""
    try:
        found = metadata(package)
    except PackageNotFoundError:
        return "not stated: the package is not installed here"
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in found.get_all("Classifier") or []
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    for text in (*(found.get_all("License-Expression") or []), ", ".join(classifiers)):
        if text.strip():
            return str(text).strip()
    lines = str((found.get_all("License") or [""])[0]).strip().splitlines()
    return lines[0][:80] if lines else "not stated"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shown(value: float | None, digits: int = 3, times: int = 1) -> str:
    return "-" if value is None else f"{times * value:.{digits}f}"
