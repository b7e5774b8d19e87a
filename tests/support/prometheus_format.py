"""Prometheus' text format 0.0.4 as its documentation gives it, read strictly."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    """The samples by name and labels.

    Raises:
        AssertionError: a line breaks the format, a family is split or not typed, or a sample comes twice.
    """
    assert text.endswith("\n")
    samples: Samples = {}
    family, seen, helped = "", set(), set()
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped, line
            helped.add(name)
        elif line.startswith("# TYPE "):
            family = line.split(" ")[2]
            assert line.split(" ")[3] in ("counter", "gauge", "histogram", "summary", "untyped")
            assert family not in seen, f"{family} comes twice"
            seen.add(family)
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == family, f"{line} stands under {family}"
            labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            assert (match[1], labels) not in samples, line
            samples[match[1], labels] = float(match[3])
    return samples
