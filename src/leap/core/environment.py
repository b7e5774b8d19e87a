"""Where and with what a number was measured: versions, hardware, commit. Written into every evidence file."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")


def environment(device: str) -> dict[str, Any]:
    """Return what a measurement depends on in addition to its settings and data.

    python, torch, transformers, platform, cpu, cores (those this process may use), card (on CUDA only), commit and
    dirty (null outside a git repository).
    """
    card = {"card": card_name(device)} if device.startswith("cuda") else {}
    return {
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **card,
        **commit(Path.cwd()),
    }


def hardware(environment: dict[str, Any]) -> str:
    """Return the machine of an evidence file's `environment` in words: the card, else the CPU with its cores."""
    return str(environment.get("card") or f"{environment.get('cpu')}, {environment.get('cores')} cores")


def this_hardware(on_card: bool) -> list[str]:
    """Return this machine as `hardware` names it: its cards, or its CPU where no card is asked for."""
    if not on_card:
        return [hardware(environment("cpu"))]
    import torch  # takes seconds: only where a measurement was made on a card

    return [card_name(f"cuda:{number}") for number in range(torch.cuda.device_count())]


def package_version(package: str) -> str | None:
    """Return the installed version by the package's metadata, without importing it; null if it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the CPU's model name, or the architecture where the system does not tell."""
    if CPU_INFO.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(errors="replace"), re.MULTILINE)
        if match:
            return match.group(1).strip()
    return platform.processor() or platform.machine()


def card_name(device: str) -> str:
    import torch  # takes seconds, and is loaded already where a card was used

    return torch.cuda.get_device_name(torch.device(device))


SETTINGS_AND_LOCK = (":!dvc.lock", ":!params.yaml")


def commit(folder: Path) -> dict[str, Any]:
    """Read the git commit of the project at `folder`, and whether tracked files differ from it.

    dvc.lock and params.yaml are not counted: the pipeline itself writes the one while it runs, and the other's
    settings are recorded with every result, so that they say nothing about the code.
    """
    try:
        head = _git(folder, "rev-parse", "HEAD").strip()
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", *SETTINGS_AND_LOCK)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": head, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout  # nosec B603
