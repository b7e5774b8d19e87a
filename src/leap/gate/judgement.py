"""From the files of evidence to the verdict: what the gate stage, `leap gate` and `leap promote` share."""

from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.settings import Settings
from leap.evidence.evidence_file import Evidence, read_evidence, read_evidence_file
from leap.gate.binding import refuse_unbound
from leap.gate.verdict import verdict_of

EVALUATIONS, MODELS = Path("evaluations"), Path("models")


def judge_checkpoint(
    settings: Settings, variant: str, seed: int, root: Path = EVALUATIONS, models: Path | None = MODELS
) -> tuple[Evidence, dict[str, Any]]:
    """Read the evidence of a checkpoint and its rivals, refuse what is not of it, and judge.

    Args:
        settings: the checks, and what the evidence must have been measured with.
        root: the folder of all evidence.
        models: the folder of all checkpoints, whose weights must be the evidence's; null compares none.

    Raises:
        UserError: evidence is missing, of another model, or stale.
    """
    evidence = _bound(settings, variant, seed, root, models)
    rivals: dict[str, Evidence | None] = {}
    for role in ("baseline", "fixed_depth"):
        name = getattr(settings.gate, role)
        if name is None:
            rivals[role] = None
        elif name == variant:
            rivals[role] = evidence
        elif (root / f"{name}-{seed}").is_dir():
            # No check compares latencies of two models.
            rivals[role] = _bound(settings, name, seed, root, models, latency=False)
    return evidence, verdict_of(settings, evidence, rivals)


def judge_folder(settings: Settings, folder: Path, models: Path | None = None) -> list[dict[str, Any]]:
    """Judge a folder of evidence: of one checkpoint (evaluations/leap-1) or of all (evaluations).

    Raises:
        UserError: there is no evidence, or it is refused; see `judge_checkpoint`.
    """
    one = (folder / "diagnose.json").is_file()
    folders = [folder.absolute()] if one else sorted(path.parent for path in folder.glob("*/diagnose.json"))
    if not folders:
        raise UserError(
            f"{folder} holds no evidence: name a folder such as evaluations/leap-1, which has diagnose.json"
        )
    verdicts = []
    for folder_of_one in folders:
        head = read_evidence_file(folder_of_one / "diagnose.json")
        variant, seed = str(head.get("variant")), head.get("seed")
        if folder_of_one.name != f"{variant}-{seed}" or not isinstance(seed, int):
            raise UserError(f"{folder_of_one} holds the evidence of {variant}-{seed}: rename it to that")
        root = (
            folder_of_one.parent.relative_to(Path.cwd())
            if folder_of_one.is_relative_to(Path.cwd())
            else folder_of_one.parent
        )
        verdicts.append(judge_checkpoint(settings, variant, seed, root, models)[1])
    return verdicts


def _bound(
    settings: Settings, variant: str, seed: int, root: Path, models: Path | None, latency: bool = True
) -> Evidence:
    evidence = read_evidence(variant, seed, settings, root, models, latency=latency)
    refuse_unbound(evidence, settings, root)
    return evidence
