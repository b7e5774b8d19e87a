"""`leap calibrate --queries --documents`: the earliest query layer that keeps the nearest documents."""

import json
import random
from pathlib import Path

import pytest
import torch
from scipy.stats import binom
from tiny_models import WORDS, write_folder
from torch.nn import functional as F
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.core.files import read_json
from leap.exits import LeapEncoder
from leap.exits.calibrate.calibrate_folder import calibrate_folder
from leap.exits.calibrate.query_layer import (
    QueryCalibration,
    QueryDemand,
    calibrate_queries,
    describe_queries,
    earliest_layer,
    measure_overlap,
)

LOW = QueryDemand(keep=0.2, confidence=0.9)


def texts(count: int, seed: int) -> list[str]:
    """Different texts of 2 to 12 words."""
    generator = random.Random(seed)
    made = (" ".join(generator.choices(WORDS, k=generator.randint(2, 12))) for _ in range(3 * count))
    return list(dict.fromkeys(made))[:count]


@pytest.fixture(scope="module")
def queries() -> list[str]:
    return texts(120, seed=1)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return texts(150, seed=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def run(
    folder: Path, queries: list[str], documents: list[str], demand: QueryDemand, **changes
) -> QueryCalibration:
    files = folder.with_name("queries.txt"), folder.with_name("documents.txt")
    for file, lines in zip(files, (queries, documents), strict=True):
        file.write_text("\n".join(lines) + "\n")
    options = {"column": None, "with_heads": False, "output": None, "batch_size": 64, "device": "cpu", "seed": 17}
    return calibrate_folder(calibrate_queries, str(folder), files, demand, **options | changes)


def test_miscoverage_is_at_most_five_percent_in_200_splits() -> None:
    """A population of queries whose true mean share is known at each layer; at layer 3 it is just too low."""
    generator = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.6, 0.8, 0.895, 0.925, 0.97])[:, None]
    population = (torch.rand(5, 20_000, 10, generator=generator) < chances[:, :, None]).double().mean(2)
    truth = population.mean(1)
    demand = QueryDemand(keep=0.9, confidence=0.95)
    assert truth[2] < demand.keep < truth[3]
    layers = []
    for _ in range(200):
        drawn = torch.randint(20_000, (400,), generator=generator)
        layers.append(earliest_layer(population[:, drawn], demand))
    wrong = sum(layer is not None and truth[layer - 1] < demand.keep for layer in layers)
    assert wrong <= binom.ppf(0.999, 200, 0.05)
    # It is no empty promise: where the share is truly kept, it is mostly shown.
    assert sum(layer == 4 for layer in layers) > 150


def test_miscoverage_holds_for_whole_lists_lost_or_kept() -> None:
    """The hardest distribution: each query keeps all of its ten documents or none."""
    generator = torch.Generator().manual_seed(1)
    demand = QueryDemand(keep=0.9, confidence=0.95)
    shares = (torch.rand(200, 1, 300, generator=generator) < 0.9).double()
    wrong = sum(earliest_layer(each, demand) is not None for each in shares)
    assert wrong <= binom.ppf(0.999, 200, 0.05)


def test_the_sequence_runs_from_deep_to_shallow_and_stops() -> None:
    good, bad = torch.full((300,), 0.97), torch.full((300,), 0.7)
    demand = QueryDemand(keep=0.9, confidence=0.95)
    assert earliest_layer(torch.stack([bad, good, good]), demand) == 2
    assert earliest_layer(torch.stack([good, bad, good]), demand) == 3  # layer 1 is not looked at
    assert earliest_layer(torch.stack([good, good, bad]), demand) is None
    assert earliest_layer(torch.empty(0, 300), demand) is None


@pytest.mark.parametrize("dimensions", [None, 5])
def test_the_shares_are_those_of_a_search_by_hand(
    tiny_folder: Path, queries: list[str], documents: list[str], dimensions: int | None
) -> None:
    tiny_model = LeapEncoder(tiny_folder, "cpu", truncate_dim=dimensions)
    shares = measure_overlap(tiny_model, queries, documents, batch_size=32)
    assert shares.shape == (4, 120)

    def ten_nearest(vectors: torch.Tensor) -> list[set[int]]:
        index = torch.from_numpy(tiny_model.encode(documents, strategy="full"))
        cosines = F.normalize(torch.as_tensor(vectors), dim=-1) @ F.normalize(index, dim=-1).T
        return [set(row) for row in cosines.topk(10).indices.tolist()]

    full = ten_nearest(tiny_model.encode(queries, strategy="full"))
    for layer in (1, 4):
        result = ten_nearest(tiny_model.encode(queries, strategy="fixed", layer=layer))
        expected = [len(one & other) / 10 for one, other in zip(result, full, strict=True)]
        assert shares[layer - 1].tolist() == pytest.approx(expected)


def test_prompts_of_queries_and_documents_are_used(folder: Path, queries: list[str], documents: list[str]) -> None:
    plain = LeapEncoder(folder, "cpu")
    prompted = LeapEncoder(folder, "cpu", prompts={"query": "ba be ", "document": "ko ku "})
    by_hand = measure_overlap(
        plain, [f"ba be {text}" for text in queries], [f"ko ku {text}" for text in documents]
    )
    assert measure_overlap(prompted, queries, documents).equal(by_hand)


def test_the_rule_is_written_next_to_the_document_rule(
    folder: Path, queries: list[str], documents: list[str]
) -> None:
    calibrated = run(folder, queries, documents, LOW)
    assert calibrated.report["layer"] == calibrated.layer < 5
    rule = read_json(folder / "leap.json", "")
    assert rule["query"] == {"layer": calibrated.layer}
    assert rule["document"] == "full"
    model = LeapEncoder(folder, "cpu")
    assert rule["exit"] == vars(model.rule)
    facts = read_json(folder / "query_calibration.json", "")
    assert facts["kept_by_layer"]["4"] == pytest.approx(
        measure_overlap(model, queries, documents)[3].mean().item()
    )
    assert (facts["queries"], facts["documents"], facts["files"]) == (120, 150, ["queries.txt", "documents.txt"])
    lines = describe_queries(calibrated)
    assert lines[0].startswith(f"queries may leave at layer {calibrated.layer} (at least 20% of the ten nearest")


def test_nothing_can_be_shown_where_so(folder: Path, queries: list[str], documents: list[str]) -> None:
    calibrated = run(folder, queries, documents, QueryDemand(keep=0.99, confidence=0.6))
    assert calibrated.report["layer"] is None
    assert read_json(folder / "leap.json", "")["query"] == {"layer": 5}
    assert describe_queries(calibrated)[0].startswith("nothing can be shown (at least 99% of the ten nearest")


def test_a_copy_gets_the_rule_and_the_heads(
    folder: Path, queries: list[str], documents: list[str], tmp_path: Path
) -> None:
    before = sorted(folder.rglob("*"))
    calibrated = run(folder, queries, documents, LOW, output=tmp_path / "copy", with_heads=True)
    assert sorted(folder.rglob("*")) == before
    copy = LeapEncoder(tmp_path / "copy", "cpu")
    assert copy.heads is not None
    assert calibrated.heads is not None
    assert copy.heads.maps.equal(calibrated.heads.maps)
    shares = measure_overlap(copy, queries, documents, heads=copy.heads).mean(1)
    assert [*calibrated.report["kept_by_layer"].values()] == pytest.approx(shares.tolist())
    # A map learned on the documents keeps more at every layer than none.
    assert (shares > measure_overlap(LeapEncoder(folder, "cpu"), queries, documents).mean(1)).all()


def test_it_is_the_same_again(folder: Path, queries: list[str], documents: list[str]) -> None:
    run(folder, queries, documents, LOW)
    first = {name: (folder / name).read_bytes() for name in ("leap.json", "query_calibration.json")}
    run(folder, queries, documents, LOW)
    assert {name: (folder / name).read_bytes() for name in first} == first


def test_too_little_text_is_refused(tiny_model: LeapEncoder, queries: list[str], documents: list[str]) -> None:
    # .9^n <= .05 first holds for n = 29.
    with pytest.raises(UserError, match=r"28 different queries are too few: keep 0\.9 .* fewer than 29"):
        calibrate_queries(tiny_model, queries[:28] * 3, documents, QueryDemand())
    with pytest.raises(UserError, match="99 different documents are too few"):
        calibrate_queries(tiny_model, queries, documents[:99] * 5, QueryDemand())


def test_repeated_documents_count_once(tiny_model: LeapEncoder, queries: list[str], documents: list[str]) -> None:
    once, often = (calibrate_queries(tiny_model, queries, given, LOW) for given in (documents, documents * 12))
    assert often.report == once.report
    assert once.report["documents"] == 150


def test_an_existing_output_is_refused_before_any_work(
    folder: Path, queries: list[str], documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leap.exits.calibrate.query_layer.LeapEncoder", None)
    with pytest.raises(UserError, match="exists"):
        run(folder, queries, documents, LOW, output=folder)
    assert not (folder / "leap.json").exists()


def test_a_demand_out_of_range_is_refused(folder: Path, queries: list[str], documents: list[str]) -> None:
    with pytest.raises(UserError, match=r"keep 1\.5 .*; confidence 0"):
        run(folder, queries, documents, QueryDemand(keep=1.5, confidence=0))


def test_a_hand_written_rule_stays(folder: Path, queries: list[str], documents: list[str]) -> None:
    (folder / "leap.json").write_text(json.dumps({"exit": {"threshold": 0.9, "min_layer": 3, "patience": 1}}))
    run(folder, queries, documents, LOW)
    assert LeapEncoder(folder, "cpu").rule.threshold == 0.9


@pytest.mark.parametrize("option", ["--floor", "--risk"])
def test_an_option_of_sentences_is_refused_for_queries(option: str, tmp_path: Path) -> None:
    given = ["calibrate", str(tmp_path), "--queries", "queries.txt", "--documents", "documents.txt", option, "0.9"]
    failed = CliRunner().invoke(app, given).exception
    assert str(failed) == f"{option} is for --sentences: queries are judged by --keep, leave it out"
