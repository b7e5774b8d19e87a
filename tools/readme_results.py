"""Writes the README's tables and pictures from committed results, `results/<date>-<hardware>/summary.json`.

python tools/readme_results.py             # rewrites README.md
python tools/readme_results.py --check     # only compares, exits with 1 on a difference

Two results are shown: the newest of the embedded profile on a CPU, and the largest (by text) on a GPU.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from leap.report.summary import COLUMNS, row

MARKS = re.compile(r"(<!-- results:.*? -->\n).*?(<!-- /results -->)", re.DOTALL)
GPU_MARKS = re.compile(r"(<!-- gpu results:.*? -->\n).*?(<!-- /gpu results -->)", re.DOTALL)


def section(folder: Path, root: Path = Path()) -> str:
    """The Markdown of one result: its table, where it is from, its picture."""
    summary = json.loads((root / folder / "summary.json").read_text())
    hardware = summary["hardware"]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row(name, item) for name, item in summary["variants"].items())]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    machine = hardware.get("card") or f"{hardware['cpu']}, {hardware['cores']} cores"
    commit = f"commit {hardware['commit'][:12]}" if hardware.get("commit") else "commit unknown"
    if hardware.get("dirty"):
        commit += " with changes"
    sentences = (summary["run"]["data"] or {}).get("kept")
    text = f", {sentences:,} training sentences" if sentences else ""
    return (
        f"\n{table}\n\n"
        f"Profile `{summary['profile']}`{text}; {machine}; {date_of(folder)}, {commit}; "
        f"all numbers are in [{folder}/summary.json]({folder}/summary.json).\n\n"
        f"![Similarity of each layer to the last one, by variant]({folder}/similarity.svg)\n\n"
    )


def shown_results(root: Path = Path()) -> tuple[Path, Path | None]:
    """The folders of the two results that the README shows; none where no GPU result is committed."""
    summaries: dict[Path, dict[str, Any]] = {
        path.parent.relative_to(root): json.loads(path.read_text())
        for path in sorted(root.glob("results/*/summary.json"))
    }

    def card(summary: dict[str, Any]) -> Any:
        return (summary["hardware"] or {}).get("card")

    def size(folder: Path) -> tuple[int, str]:
        return (summaries[folder]["run"]["data"] or {}).get("kept", 0), folder.name

    embedded = [f for f, content in summaries.items() if content["profile"] == "embedded" and not card(content)]
    largest = max((folder for folder, content in summaries.items() if card(content)), key=size, default=None)
    return max(embedded, key=lambda folder: folder.name), largest


def readme(text: str, root: Path = Path()) -> str:
    """The README's text with the sections of the results that are committed now."""
    embedded, gpu = shown_results(root)
    text = MARKS.sub(lambda found: found[1] + section(embedded, root) + found[2], text)
    measured = section(gpu, root) if gpu else "\nNo run on a GPU is committed yet.\n\n"
    return GPU_MARKS.sub(lambda found: found[1] + measured + found[2], text)


def date_of(folder: Path) -> str:
    """The date that opens a result's name."""
    return "-".join(folder.name.split("-")[:3])


def main() -> None:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    path = Path("README.md")
    text = path.read_text()
    wanted = readme(text)
    if not parser.parse_args().check:
        path.write_text(wanted)
    elif wanted != text:
        sys.exit("README.md: run `make fix`, its results are not those of results/")


if __name__ == "__main__":
    main()
