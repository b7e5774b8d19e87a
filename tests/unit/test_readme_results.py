"""The README's tables are those of the committed result files, and the right files are chosen."""

import json
from pathlib import Path
from typing import Any

import pytest
from readme_results import readme, section, shown_results, table

PROJECT = Path(__file__).parents[2]
COMMIT = "3383c4f5ab71" + 28 * "0"


def write(root: Path, name: str, **changes: Any) -> None:
    source = next(PROJECT.glob("results/*embedded-2-cores/summary.json"))
    content = json.loads(source.read_text())
    content["run"]["data"]["kept"] = changes.pop("kept", 7000)
    content["hardware"] |= {"card": changes.pop("card", None), "commit": COMMIT}
    folder = root / "results" / name
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(content | changes))


def test_the_readme_agrees_with_the_committed_results() -> None:
    text = (PROJECT / "README.md").read_text()
    assert readme(text, PROJECT) == text


def test_every_number_of_the_table_is_in_the_result_file() -> None:
    folder, _ = shown_results(PROJECT)
    summary = json.loads((PROJECT / folder / "summary.json").read_text())
    text = (PROJECT / "README.md").read_text()
    for name, variant in summary["variants"].items():
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} | "))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        sts = variant["sts"]
        assert cells[2] == f"{sts['spearman_full']:.3f} \N{RIGHTWARDS ARROW} {sts['spearman_exit']:.3f}"
        assert cells[3] == f"{variant['exit']['nn_at_10']:.3f}"
        # Where only queries leave early, the speed-up is theirs.
        speed_up = variant["speed_up"] if variant["query_speed_up"] is None else variant["query_speed_up"]
        assert cells[5] == f"{speed_up:.2f}x"


def test_a_table_has_at_most_seven_columns_and_no_row_or_column_without_figures() -> None:
    folder, _ = shown_results(PROJECT)
    summary = json.loads((PROJECT / folder / "summary.json").read_text())
    assert len(table(summary).head) == 7
    summary["variants"]["leap"]["sts"]["spearman_exit"] = None
    summary["variants"]["elastic"]["speed_up"] = summary["variants"]["elastic"]["query_speed_up"] = None
    result = table(summary)
    assert [row[0] for row in result.rows] == ["baseline", "elastic"]
    assert [row[-1].partition(":")[0] for row in result.rows] == ["control", "passes"]
    assert [row[-2] for row in result.rows] == [f"{summary['variants']['baseline']['speed_up']:.2f}x", "not timed"]
    for variant in summary["variants"].values():
        variant["speed_up"] = variant["query_speed_up"] = variant["gate"] = None
    assert table(summary).head[-1].startswith("nDCG@10")
    assert "missing" not in table(summary).markdown()


def test_the_newest_embedded_and_the_largest_gpu_result_are_shown(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-embedded", profile="embedded")
    write(tmp_path, "2026-02-01-embedded", profile="embedded")
    assert shown_results(tmp_path) == (Path("results/2026-02-01-embedded"), None)
    write(tmp_path, "2026-03-01-h100", profile="local", card="H100", kept=1_200_000)
    write(tmp_path, "2026-04-01-h100", profile="embedded", card="H100", kept=7000)
    embedded, gpu = shown_results(tmp_path)
    assert embedded == Path("results/2026-02-01-embedded")
    assert gpu == Path("results/2026-03-01-h100")
    text = section(gpu, tmp_path)
    assert "1,200,000 training sentences; H100; 2026-03-01, commit 3383c4f5ab71" in text


def test_a_section_is_written_between_its_marks(tmp_path: Path) -> None:
    write(tmp_path, "2026-02-01-embedded", profile="embedded")
    gpu = "<!-- gpu results: y -->\n<!-- /gpu results -->\n"
    text = f"a\n<!-- results: x -->\nold\n<!-- /results -->\nb\n{gpu}"
    result = readme(text, tmp_path)
    assert "old" not in result
    assert result.startswith("a\n<!-- results: x -->\n\n| variant |")
    assert "No run on a GPU is committed yet." in result.partition("\nb\n")[2]
    assert readme(result, tmp_path) == result
    with pytest.raises(ValueError, match="empty"):
        shown_results(tmp_path / "nothing")
