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

from leap.core.environment import hardware
from leap.core.grid import Grid, shown
from leap.report.findings import COLUMNS, figures, layers_of, reasons_of, verdict_word

MARKS = re.compile(r"(<!-- results:.*? -->\n).*?(<!-- /results -->)", re.DOTALL)
CONTROLS = ("baseline", "fixed_depth")
GPU_MARKS = re.compile(r"(<!-- gpu results:.*? -->\n).*?(<!-- /gpu results -->)", re.DOTALL)


def section(folder: Path, root: Path = Path()) -> str:
    """The Markdown of one result: its table, where it is from, its picture."""
    summary = json.loads((root / folder / "summary.json").read_text())
    measured_on = summary["hardware"]
    commit = f"commit {measured_on['commit'][:12]}" if measured_on.get("commit") else "commit unknown"
    if measured_on.get("dirty"):
        commit += " with changes"
    sentences = (summary["run"]["data"] or {}).get("kept")
    text = f", {sentences:,} training sentences" if sentences else ""
    return (
        f"\n{table(summary).markdown()}\n\n"
        f"Profile `{summary['profile']}`{text}; {hardware(measured_on)}; {date_of(folder)}, {commit}; "
        f"all numbers are in [{folder}/summary.json]({folder}/summary.json).\n\n"
        f"![Quality against layers and time, by variant]({folder}/frontier.svg)\n\n"
    )


def table(summary: dict[str, Any]) -> Grid:
    """At most seven columns; a variant without figures has no row, and a column without figures is left out."""
    arrow = "\N{RIGHTWARDS ARROW}"
    rows = []
    for name, variant in summary["variants"].items():
        found = figures(variant)
        if found["sts_exit"] is None:
            continue
        # Queries that leave at a layer of their own are what such a variant is for.
        early = "ndcg_exit" if found["query_speed_up"] is None else "ndcg_query"
        gain = found["speed_up"] if found["query_speed_up"] is None else found["query_speed_up"]
        # Results from before roles were written down: these two names were the controls.
        variant = {"role": name if name in CONTROLS else None, **variant}
        verdict = verdict_word(variant)
        rows.append(
            [
                name,
                layers_of(variant),
                f"{shown(found['sts_full'])} {arrow} {shown(found['sts_exit'])}",
                shown(found["nn_at_10"]),
                f"{shown(found['ndcg_full'])} {arrow} {shown(found[early])}",
                "" if gain is None else f"{gain:.2f}x",
                f"refused: {reasons_of(variant)}" if verdict == "refused" else verdict,
            ]
        )
    head = [*COLUMNS[:4], f"nDCG@10 full {arrow} exit", "speed-up", "verdict"]
    empty = [{row[i] for row in rows} <= {"", "not judged", "control"} for i in range(len(head))]
    filled = [i for i in range(len(head)) if not empty[i]]
    return Grid([head[i] for i in filled], [[row[i] or "not timed" for i in filled] for row in rows])


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
