"""LEAP: sentence encoders that exit early, from training to a gated registry."""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Telemetry is off before any library is imported; a user's own setting of these variables wins.
for name, value in {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINTS": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",
}.items():
    os.environ.setdefault(name, value)

# OpenMP reads this once, when torch is imported: threads that wait for others sleep instead of spinning. Spinning
# ones take the cores from those that they wait for as soon as anything else runs (docs/training.md has the ratio).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Imported when they are asked for (PEP 562): `leap --help` needs no PyTorch, LeapEncoder no sentence-transformers.
# Type checkers read __init__.pyi.
_PUBLIC = {
    "ExitLoss": "leap.train.exit_loss",
    "LeapEncoder": "leap.exits.leap_encoder",
    "results": "leap.report.results",
    "sentence_transformer": "leap.exits.sentence_transformer",
}

__all__ = ["ExitLoss", "LeapEncoder", "results", "sentence_transformer"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
