import copy
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made

from leap.report import plots
from leap.report.page import Pictures, pictures, render
from leap.report.paper import read_paper
from leap.report.paper_tables import paper_tables

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "link", "img"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    settings = made_settings()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variant in ("leap", "baseline"):
            write_evidence(folder, settings, variant)
    return folder


@pytest.fixture(scope="module")
def summary_once(project: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        return made(made_settings())


@pytest.fixture
def summary(summary_once: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(summary_once)


@pytest.fixture(scope="module")
def drawn(project: Path, summary_once: dict[str, Any]) -> Pictures:
    """The pictures of `summary`, drawn once: they take two seconds."""
    return pictures(copy.deepcopy(summary_once), project / "evaluations", {})


PAPER = read_paper(Path(__file__).parents[2] / "reference" / "paper.yaml")


def page(summary: dict[str, Any], drawn: Pictures, form: str = "html") -> str:
    settings = made_settings()
    tables = paper_tables(settings, summary, {}, PAPER)
    asked = {name: study.description for name, study in settings.studies.items()}
    return render(f"report.{form}.j2", summary, drawn, tables, asked, {})


class Balance(HTMLParser):
    """Every tag that opens also closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(summary: dict[str, Any], drawn: Pictures) -> None:
    text = page(summary, drawn)
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"<(script|link|img|iframe)\b", text)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert not re.search(r"url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == len(drawn)


def test_the_page_says_the_numbers_the_checks_and_the_rules(summary: dict[str, Any], drawn: Pictures) -> None:
    for text in (page(summary, drawn), page(summary, drawn, "md")):
        assert "3.10 of 4" in text
        assert "sts.drop_vs_full 0.0125" in text
        assert "near_final" in text
        assert "converged" in text
        assert "0.963" in text
        assert "Not the paper's setting: teacher" in text
    assert "1.25x" in page(summary, drawn)


def test_what_is_missing_reads_missing_in_both_forms(summary: dict[str, Any], drawn: Pictures) -> None:
    text, markdown = page(summary, drawn), page(summary, drawn, "md")
    assert '<tr><td>leap_plus</td><td colspan="8" class="missing">missing</td></tr>' in text
    assert "| leap_plus | missing | missing | missing |" in markdown
    assert "### leap_plus: missing\n\nmissing" in markdown


def test_nothing_at_all_still_gives_a_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = made(made_settings())
    nothing = pictures(empty, Path("evaluations"), {})
    for form in ("html", "md"):
        assert "missing" in page(empty, nothing, form)
    svg = plots.by_layer([], "nn_at_10", "NN@10")
    assert ">missing<" in svg


def test_text_of_the_settings_is_escaped(summary: dict[str, Any], drawn: Pictures) -> None:
    summary["variants"]["leap"]["description"] = "<script>alert(1)</script> & more"
    assert "<script>" not in page(summary, drawn)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page(summary, drawn)


def test_the_layer_table_has_a_row_a_layer(summary: dict[str, Any], drawn: Pictures) -> None:
    markdown = page(summary, drawn, "md")
    rows = markdown.partition("## Layers")[2].partition("### leap\n")[2].partition("###")[0]
    assert "| 1 | 0.400 | - | 0.000 | 0.000 | 0.300 | 0.800 | 0.600 | - | - | no |\n" in rows
    assert "| 3 | 0.960 | 0.860 | 0.900 | 0.800 | 0.850 | 0.020 | 0.000 | 0.700 | 0.200 | yes |\n" in rows


def test_a_study_that_was_not_run_names_its_command_in_both_forms(
    summary: dict[str, Any], drawn: Pictures
) -> None:
    assert "missing: <code>make study-ablation</code>" in page(summary, drawn)
    assert "missing: `make study-ablation`" in page(summary, drawn, "md")


def test_pictures_are_svg_with_a_curve_a_variant_and_the_same_every_time(
    summary: dict[str, Any], drawn: Pictures, project: Path
) -> None:
    assert list(drawn) == [
        "similarity", "stability", "neighbours", "exits", "quality", "failure", "contraction", "pareto",
        "fixed_depth", "widths", "reduction", "losses", "latency_1", "latency_8",
    ]  # fmt: skip
    for name, (_, svg, _) in drawn.items():
        if name in ("pareto", "fixed_depth", "widths"):  # of studies that were not run
            assert ">missing<" in svg
            continue
        tree = ElementTree.fromstring(svg)
        assert tree.tag == f"{SVG}svg"
        words = {element.text for element in tree.iter(f"{SVG}text")}
        assert {"leap", "baseline"} <= words, name
        assert "currentColor" in svg
        assert plots.INK not in svg
        assert "<date>" not in svg
    assert drawn == pictures(summary, project / "evaluations", {})


def test_a_batch_of_mixed_exits_has_its_bar(drawn: Pictures) -> None:
    _, svg, rows = drawn["latency_8"]
    assert any(row["mixed"] for row in rows)
    words = {element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert {"full", "exit", "monitored", "truncated"} <= words


def test_a_curve_goes_through_its_points() -> None:
    rows = [{"variant": "a", "layer": layer, "x": value} for layer, value in ((1, 0.0), (2, 1.0), (3, 0.5))]
    svg = plots.by_layer(rows, "x", "x")
    tree = ElementTree.fromstring(svg)
    curve = next(
        path.attrib["d"]
        for path in tree.iter(f"{SVG}path")
        if "stroke: #0072b2" in path.attrib.get("style", "").lower() and path.attrib["d"].count("L") == 2
    )
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, p)) for p in re.findall(r"([\d.]+) ([\d.]+)", curve)]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.01)
    assert y2 < y3 < y1  # SVG counts downwards
    assert (y1 - y3) == pytest.approx((y1 - y2) / 2, abs=0.01)


@pytest.mark.parametrize("form", ["html", "md"])
def test_gains_strategies_lengths_and_the_proof_are_shown(
    summary: dict[str, Any], drawn: Pictures, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = {"what": "STS-B test, Spearman", "found": 0.8204, "value": 0.8203, "tolerance": 0.001}
    proof = {
        "model": "all-MiniLM-L6-v2",
        "date": "2026-11-28",
        "environment": {"cpu": "a processor", "commit": None},
        "figures": [{**figure, "source": "sbert.net", "holds": True}],
    }
    monkeypatch.setattr("leap.report.page.read_proof", lambda: proof)
    rival = {"difference": -0.0123, "ci95": [-0.02, 0.001], "p_value": 0.084}
    summary["variants"]["leap"]["rivals"] = {"fixed_depth": {"sts": {"software": {"exit": rival}}}}
    text = page(summary, drawn, form)
    for part in ("0.0010 [-0.0010, 0.0030]", "-0.0123 [-0.0200, 0.0010], p 0.084", "near_final", "0.8204"):
        assert part in text
    assert "theta 0.95, min_layer 3, patience 1: 3.10 layers" in text
    monkeypatch.setattr("leap.report.page.read_proof", lambda: None)
    assert "prove_evaluators.py DATA" in page(summary, drawn, form)


def test_the_time_of_a_strategy_is_measured_or_estimated_and_says_so() -> None:
    from leap.report.wall_clock import wall_clock

    timed = [("full", 8.0, 12.0), ("exit", 5.0, 6.0), ("monitored", 9.0, 12.0)]
    rows = [{"path": path, "batch": 1, "ms_p50": ms, "expected_layers": layers} for path, ms, layers in timed]
    rows.append({"path": "exit", "batch": 8, "ms_p50": 99.0, "expected_layers": 6.0})

    def strategy(name: str, deployable: bool = True) -> dict[str, Any]:
        return {"strategy": name, "deployable": deployable, "expected_layers": 8.0}

    assert wall_clock(rows, strategy("converged")) == "5.00 ms"
    assert wall_clock(rows, strategy("patience_2")) == "about 6.00 ms"
    assert wall_clock(rows, strategy("near_final", deployable=False)) == "-"
    assert wall_clock(None, strategy("converged")) == wall_clock(rows[:1], strategy("heads")) == "missing"


def test_several_seeds_show_their_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings(seeds=[1, 2])
    for seed in (1, 2):
        write_evidence(tmp_path, settings, "leap", seed, sts={"spearman_exit": 0.7 + seed / 10})
    text = page(made(settings), {}, "md")
    assert "| leap | sts.spearman_exit | 0.8500 | 0.0707 | 0.8000 | 0.9000 | 2 |" in text
