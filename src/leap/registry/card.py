"""The model card: README.md with the hub's front matter, every figure with where it comes from.

The front matter is the hub's (huggingface.co/docs/hub/model-cards); scores of a data set go into
`model-index`.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from leap.core.environment import hardware
from leap.core.settings import Settings
from leap.core.settings.sources import HubModel, HubText, PackageModel, PackageText
from leap.evidence.evidence_file import Evidence
from leap.gate.metrics import query_layer_alone, query_row

TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "early-exit"]


def model_card(settings: Settings, evidence: Evidence, verdict: dict[str, Any]) -> str:
    """Write the card of one checkpoint from the settings (`gate.card`, data), its evidence and its verdict."""
    name = f"{settings.registered_model}-{evidence.variant}-{evidence.seed}"
    primary = settings.evaluation.primary_set
    latency = evidence.latency or {}
    queries = query_row(latency)
    body = _render(
        name=name,
        variant=settings.variants[evidence.variant],
        primary=primary,
        evidence=evidence,
        diagnose=evidence.diagnose or {},
        early=queries or latency,
        queries=queries is not None,
        query_layer=query_layer_alone(evidence),
        scores=evidence.sts.get(primary, {}).get("spearman_by_layer", []),
        verdict=verdict,
        machine=hardware(latency.get("environment", {})),
        data=_data(settings),
        teacher=_teacher(settings),
    )
    return with_front_matter(_front_matter(name, settings, evidence), body)


def plain_card(name: str) -> str:
    """Return the card of a model that the gate has not judged: how it is used, and no figures."""
    front = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": list(TAGS)}
    return with_front_matter(front, _render(name=name, verdict=None, query_layer=None))


def _render(**content: Any) -> str:
    # Markdown, not HTML: nothing is escaped but the bars of a table's cells.
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)  # nosec B701
    environment.filters |= {"shown": _shown, "cell": lambda text: text.replace("|", "\\|")}
    return environment.get_template("card.md.j2").render(content)


def with_front_matter(front: dict[str, Any], body: str) -> str:
    """Return a card of its front matter and its text."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**front)}\n---\n\n{body}\n"


def front_matter(card: str) -> dict[str, Any]:
    """Return the front matter of a card; empty where it has none."""
    from huggingface_hub import ModelCard

    if not card.lstrip().startswith("---"):
        return {}  # huggingface_hub warns of it
    return dict(ModelCard(card, ignore_metadata_errors=True).data.to_dict())  # type: ignore[no-untyped-call]


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
    """Return every score, with exits, of queries that exit and at full depth, as huggingface_hub's EvalResult."""
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
        for mode, words in (("exit", "with exits"), ("query_exit", "queries exit"), ("full", "full depth"))
        if content.get(f"{figure}_{mode}") is not None
    ]


def _data(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Every source of text: its name, what it is, and its licence."""
    for name, source in settings.data.sources.items():
        licence = settings.gate.card.data_licenses.get(name)
        if isinstance(source, PackageText):
            for package in source.packages:
                yield name, f"docstrings of the package {package}", licence or package_licence(package)
        elif isinstance(source, HubText):
            where = f"[{source.repo}](https://huggingface.co/datasets/{source.repo}) at {source.revision[:12]}"
            yield name, where, licence or "see its page"
        else:
            yield name, "local files", licence or "not stated"


def _shown(value: Any, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"


def _teacher(settings: Settings) -> str:
    teacher = settings.teacher
    if isinstance(teacher, HubModel):
        return f"[{teacher.repo}](https://huggingface.co/{teacher.repo}) at {teacher.revision[:12]}"
    if isinstance(teacher, PackageModel):
        return f"the weights in the package {teacher.package} (its licence: {package_licence(teacher.package)})"
    return "a local model"


def package_licence(package: str) -> str:
    """Return the licence that an installed package's metadata name."""
    try:
        about = metadata(package)
    except PackageNotFoundError:
        return "not stated: the package is not installed here"
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    for text in (*(about.get_all("License-Expression") or []), ", ".join(classifiers)):
        if text.strip():
            return str(text).strip()
    lines = str((about.get_all("License") or [""])[0]).strip().splitlines()
    return lines[0][:80] if lines else "not stated"
