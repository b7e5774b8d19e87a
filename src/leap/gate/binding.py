"""The binding of evidence: it must be about this model, these settings, these data and this code.

`read_evidence` compares weights and exit rule; here is the rest. A git commit is recorded in the evidence but
not compared, since a commit of other files changes no number: the code that measured is compared module by
module.
"""

from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.core.settings import Settings
from leap.core.source_code import PACKAGE
from leap.evidence.evidence_file import Evidence, evidence_files, measured_settings


def refuse_unbound(evidence: Evidence, settings: Settings, root: Path) -> None:
    """Refuse evidence that is of something else, or out of date; all faults at once, each with its file.

    A file is refused that has no checksum, is of another variant or seed, or was measured with other settings, on
    data that are different now, or by code that is different now.
    """
    data: dict[str, str] = {}
    faults = []
    paths = evidence_files(evidence.variant, evidence.seed, settings, root)
    for name, content in evidence.files.items():
        faults += [f"{paths[name]} {fault}" for fault in _faults(name, content, evidence, settings, data)]
    if faults:
        lines = "\n".join(f"  - {line}" for line in faults)
        raise UserError(
            f"the evidence of {evidence.variant}-{evidence.seed} is refused:\n{lines}\n"
            "`dvc repro` measures again what is out of date; delete a file to have it measured again"
        )


def list_bindings(evidence: Evidence) -> dict[str, Any]:
    """List what a verdict rests on: exit rule, data, commits and hardware, and the checksum of every file."""
    contents = evidence.files
    environments = [content.get("environment", {}) for content in contents.values()]
    return {
        "exit_rule": next((content.get("exit_rule") for content in contents.values()), None),
        "data": {file: hash_ for content in contents.values() for file, hash_ in content.get("data", {}).items()},
        "commits": sorted({_commit(environment) for environment in environments}),
        "evidence": {name: content.get("checksum") for name, content in contents.items()},
    }


def _faults(
    name: str, content: dict[str, Any], evidence: Evidence, settings: Settings, data: dict[str, str]
) -> list[str]:
    kind, _, set_name = name.partition("/")
    if "checksum" not in content:
        return ["has no checksum: it was written by an older version or by hand"]
    place = (content.get("kind"), content.get("variant"), content.get("seed"))
    if place != (kind, evidence.variant, evidence.seed):
        return [f"is evidence of {place[0]}, {place[1]}-{place[2]}: it lies in the wrong place"]
    wanted = measured_settings(kind, settings, set_name or None)
    return [
        *_changed_settings(content.get("settings") or {}, wanted),
        *_changed_code(content.get("code") or {}),
        *_changed_data(content.get("data") or {}, data),
    ]


def _changed_settings(measured: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    before, now = (
        {f"{block}.{key}": value for block, keys in blocks.items() for key, value in keys.items()}
        for blocks in (measured, wanted)
    )
    return [
        f"was measured with {name} {before.get(name)!r}, the settings say {now.get(name)!r}"
        for name in sorted(before | now)
        if before.get(name) != now.get(name)
    ]


def _changed_code(measured: dict[str, str]) -> list[str]:
    if not measured:
        return ["does not say which code measured it"]
    changed = [name for name, digest in measured.items() if not _is(PACKAGE / name, digest)]
    return [f"was measured by other code: leap/{', leap/'.join(changed)} changed since"] if changed else []


def _changed_data(measured: dict[str, str], others: dict[str, str]) -> list[str]:
    """Data that are here are compared; evidence may be judged where they are not."""
    faults = []
    for name, digest in measured.items():
        if Path(name).is_file() and not _is(Path(name), digest):
            faults.append(f"was measured on another {name} than the one there is now")
        elif others.setdefault(name, digest) != digest:
            faults.append(f"was measured on another {name} than the other files")
    return faults


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _commit(environment: dict[str, Any]) -> str:
    commit = environment.get("commit")
    if commit is None:
        return "no commit"
    return f"{commit} with changes" if environment.get("dirty") else str(commit)
