"""Why a figure of ours may differ from the paper's: read from the settings and the run's facts."""

from dataclasses import dataclass
from typing import Any

from leap.core.settings import Settings
from leap.report.paper import PaperSetting
from leap.report.summary import dig


@dataclass(frozen=True)
class RunSetting:
    """What a result was measured on, as far as it is known; null where it is not."""

    teacher: str | None
    student_layers: int | None
    student_width: int | None
    sentences: int | None
    epochs: int | None
    similarity_set: str | None
    hardware: str | None
    precision: str | None
    seeds: int | None


# What of the setting a kind of table depends on.
QUALITY = ("teacher", "student_layers", "student_width", "sentences", "epochs", "similarity_set", "seeds")
RETRIEVAL = ("teacher", "student_layers", "student_width", "sentences", "epochs", "seeds")
LATENCY = ("student_layers", "student_width", "hardware", "precision")

WORDS = {
    "teacher": "teacher",
    "student_layers": "student layers",
    "student_width": "student width",
    "sentences": "training sentences",
    "epochs": "epochs",
    "similarity_set": "similarity set",
    "hardware": "hardware",
    "precision": "precision",
    "seeds": "seeds",
}


def of_run(settings: Settings, summary: dict[str, Any], variant: str = "leap") -> RunSetting:
    """The setting of the pipeline's own results."""
    facts = summary["run"]
    hardware = summary["hardware"] or {}
    chosen = settings.variant(variant) if variant in settings.variants else None
    student, train = (chosen.student, chosen.train) if chosen else (settings.student, settings.train)
    return RunSetting(
        teacher=dig(facts, "teacher", "source"),
        student_layers=student.layers,
        student_width=student.width,
        sentences=dig(facts, "data", "kept"),
        epochs=train.epochs,
        similarity_set=settings.evaluation.primary_set,
        hardware=hardware.get("card") or hardware.get("cpu"),
        precision=dig(summary["variants"].get(variant, {}), "protocol", "precision"),
        seeds=len(settings.seeds),
    )


def of_study(settings: Settings, summary: dict[str, Any], study: str) -> RunSetting:
    """The setting of a study's results: its own sizes over the pipeline's."""
    block = settings.study(study)
    variant = settings.study_variant(study, next(iter(block.variants)))
    whole = dig(summary["run"], "data", "kept")
    taken = block.sentences if whole is None or block.sentences is None else min(block.sentences, whole)
    run = of_run(settings, summary)
    return RunSetting(
        teacher=run.teacher,
        student_layers=variant.student.layers,
        student_width=variant.student.width,
        sentences=whole if block.sentences is None else taken,
        epochs=variant.train.epochs,
        similarity_set=run.similarity_set,
        hardware=run.hardware,
        precision=run.precision,
        seeds=len(block.seeds or settings.seeds),
    )


def reasons(
    ours: RunSetting, paper: PaperSetting, kinds: tuple[str, ...], sizes: dict[str, int] | None = None
) -> list[str]:
    """A line a fact in which our setting is not the paper's; none where all are the same.

    Args:
        ours: our setting.
        paper: the paper's.
        kinds: the facts that matter, QUALITY, RETRIEVAL or LATENCY.
        sizes: sentences and epochs of a table that the paper made with others.
    """
    lines = []
    for name in kinds:
        wanted, found = (sizes or {}).get(name, getattr(paper, name)), getattr(ours, name)
        if not _same(name, found, wanted):
            lines.append(f"{WORDS[name]} {_shown(found)}, paper {_shown(wanted)}")
    return lines


def _same(name: str, found: Any, wanted: Any) -> bool:
    if found is None:
        return False
    if name in ("teacher", "hardware"):
        # A hub name has its owner before it, a card its memory behind it.
        return str(wanted).lower() in str(found).lower()
    if name == "sentences":
        return bool(0.9 <= found / wanted <= 1.1)  # the paper says 1.5M
    return bool(found == wanted)


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
