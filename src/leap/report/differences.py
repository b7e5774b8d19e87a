"""Reasons why a figure of ours may differ from the paper's: read from the settings and the run's facts."""

from collections.abc import Mapping
from typing import Any

from leap.core.settings import Settings
from leap.report.paper import PaperSetting
from leap.report.summary import dig

# What of the setting a kind of table depends on; the names are those of `PaperSetting`.
STUDENT = ("student_layers", "student_width")
RETRIEVAL = ("teacher", *STUDENT, "sentences", "epochs", "seeds")
QUALITY = (*RETRIEVAL[:-1], "similarity_set", "seeds")
LATENCY = (*STUDENT, "hardware", "precision")


def our_setting(settings: Settings, summary: dict[str, Any], study: str | None = None) -> dict[str, Any]:
    """Collect the setting of our results by the names of `PaperSetting`; null where it is not known.

    Results of a `study` have its own sizes.
    """
    facts, hardware = summary["run"], summary["hardware"] or {}
    sentences = dig(facts, "data", "kept")
    shared: Any = settings.variant("leap") if "leap" in settings.variants else settings
    seeds = settings.seeds
    if study is not None:
        block = settings.study(study)
        shared = settings.study_variant(study, next(iter(block.variants)))
        seeds = block.seeds or seeds
        sizes = [size for size in (block.sentences, sentences) if size is not None]
        sentences = min(sizes, default=None)
    return {
        "teacher": dig(facts, "teacher", "source"),
        "student_layers": shared.student.layers,
        "student_width": shared.student.width,
        "sentences": sentences,
        "epochs": shared.train.epochs,
        "similarity_set": settings.evaluation.primary_set,
        "hardware": hardware.get("card") or hardware.get("cpu"),
        "precision": dig(summary["variants"].get("leap", {}), "protocol", "precision"),
        "seeds": len(seeds),
    }


def reasons(
    ours: Mapping[str, Any], paper: PaperSetting, kinds: tuple[str, ...], sizes: Mapping[str, int] | None = None
) -> list[str]:
    """List a line for each fact in which our setting is not the paper's.

    `kinds` are the facts that matter, QUALITY, RETRIEVAL or LATENCY; `sizes` sentences and epochs of a table that
    the paper made with others.
    """
    wanted = {name: (sizes or {}).get(name, getattr(paper, name)) for name in kinds}
    words = {"sentences": "training sentences"}
    return [
        f"{words.get(name, name.replace('_', ' '))} {_shown(ours[name])}, paper {_shown(value)}"
        for name, value in wanted.items()
        if not _same(name, ours[name], value)
    ]


def _same(name: str, ours: Any, wanted: Any) -> bool:
    if ours is None:
        return False
    if name in ("teacher", "hardware"):
        # A hub name has its owner before it, a card its memory behind it.
        return str(wanted).lower() in str(ours).lower()
    if name == "sentences":
        return bool(0.9 <= ours / wanted <= 1.1)  # the paper says 1.5M
    return bool(ours == wanted)


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
