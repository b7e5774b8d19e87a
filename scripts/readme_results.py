"""Writes the README's table and picture from a committed result, `results/<date>-<hardware>/summary.json`.

python scripts/readme_results.py             # rewrites README.md
python scripts/readme_results.py --check     # only compares, exits with 1 on a difference
"""

import argparse
import json
import re
import sys
from pathlib import Path

from leap.reporting.summary import COLUMNS, row

MARKS = re.compile(r"(<!-- results:.*? -->\n).*?(<!-- /results -->)", re.DOTALL)


def section(folder: Path) -> str:
    """The Markdown of one result: where it is from, its table, its picture."""
    summary = json.loads((folder / "summary.json").read_text())
    hardware = summary["hardware"]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row(name, item) for name, item in summary["variants"].items())]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    date = "-".join(folder.name.split("-")[:3])
    return (
        f"\n{table}\n\n"
        f"Profile `{summary['profile']}`, {hardware['cpu']}, {hardware['cores']} cores, {date}; "
        f"all numbers are in [{folder}/summary.json]({folder}/summary.json).\n\n"
        f"![Similarity of each layer to the last one, by variant]({folder}/similarity.svg)\n\n"
    )


def main() -> None:
    """Rewrites or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    readme = Path("README.md")
    text = readme.read_text()
    newest = max(path.parent for path in Path("results").glob("*/summary.json"))
    wanted = MARKS.sub(lambda found: found[1] + section(newest) + found[2], text)
    if not parser.parse_args().check:
        readme.write_text(wanted)
    elif wanted != text:
        sys.exit("README.md: run `make fix`, its results are not those of results/")


if __name__ == "__main__":
    main()
