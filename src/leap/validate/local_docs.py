"""Great Expectations' pages without a network: no script, style or picture from elsewhere, an index of our own."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

# Tags that load from another host, and the advertisement at the end.
_FOREIGN = re.compile(
    r"<script[^>]*\ssrc=\"https?:[^>]*>\s*</script>|<(?:link|img)[^>]*\s(?:href|src)=\"https?:[^>]*>"
    r"|url\(['\"]?https?:[^)]*\)|<p>Stay current.*?</p>",
    re.DOTALL,
)
# What is left of the pages' own layout when its framework is gone.
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
nav, footer, .modal, .sticky, .navbar-brand { display: none !important; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
td, th { border-bottom: 1px solid #8886; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
.collapse, .tab-pane { display: block !important; opacity: 1 !important; }
.passed { color: #00734f; } .failed { color: #b3261e; font-weight: 600; }
.fa-check-circle::before { content: "\\2714"; } .fa-times::before { content: "\\2718"; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6; } a { color: #8ab4f8; } }
"""


def make_local(docs: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Take everything foreign out of Great Expectations' pages, and write an index that needs no script.

    `entries` are its results, as `leap.validate.expectations.validate` returns them.
    """
    for page in docs.rglob("*.html"):
        text = _FOREIGN.sub("", page.read_text(encoding="utf-8"))
        page.write_text(text.replace("</head>", f"<style>{STYLE}</style></head>", 1), encoding="utf-8")
    pages = {page.parents[2].name: page for page in sorted(docs.glob("validations/*/*/*/*.html"))}
    rows = "".join(_row(entry, pages, docs) for entry in entries)
    failed = sum(not entry["passed"] for entry in entries)
    finding = (
        f"{failed} of {len(entries)} expectations failed" if failed else f"all {len(entries)} expectations passed"
    )
    (docs / "index.html").write_text(
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Data Docs</title>"
        f"<style>{STYLE}</style></head>"
        f"<body><h1>Data Docs</h1><p>Great Expectations on what was extracted: {finding}.</p><table><tr><th></th>"
        f"<th>table</th><th>column</th><th>expectation</th><th>demanded</th><th>observed</th></tr>{rows}</table>"
        "</body></html>\n",
        encoding="utf-8",
    )


def _row(entry: dict[str, Any], pages: dict[str, Path], docs: Path) -> str:
    page = pages.get(entry["suite"])
    name = escape(entry["suite"])
    suite = f"<a href='{escape(page.relative_to(docs).as_posix())}'>{name}</a>" if page else name
    observed = entry["observed"]
    if isinstance(observed, dict) and "unexpected" in observed:
        observed = f"{observed['unexpected']} of {observed['of']} are not so"
    demanded = ", ".join(f"{key} {value}" for key, value in entry["parameters"].items())
    cells = [
        entry["column"] or "",
        entry["expectation"].removeprefix("expect_").replace("_", " "),
        demanded,
        observed,
    ]
    mark = "<td class='passed'>passed</td>" if entry["passed"] else "<td class='failed'>failed</td>"
    return f"<tr>{mark}<td>{suite}</td>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
