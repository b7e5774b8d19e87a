"""The headline figures as a pandas table."""

import json
from pathlib import Path

import pytest
from made_evidence import made_settings, write_evidence
from test_summary import made

from leap import results
from leap.core.errors import UserError


def test_results_are_a_row_a_variant_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = made_settings(seeds=[1, 2])
    for seed in (1, 2):
        write_evidence(tmp_path, settings, "leap", seed, sts={"spearman_exit": 0.7 + seed / 10})
    with pytest.raises(UserError, match=r"summary\.json"):
        results()
    Path("reports").mkdir()
    Path("reports/summary.json").write_text(json.dumps(made(settings)))
    table = results()
    assert table.index.names == ["variant", "seed"]
    assert table.loc[("leap", 2), "sts_exit"] == pytest.approx(0.9)
    assert table.loc["leap"]["layers"].tolist() == [3.1, 3.1]
    assert table.loc[("leap", 1), "ndcg_query"] == pytest.approx(0.495)
    assert table.loc[("leap", 1), "verdict"] == "passes"
    assert table.loc[("baseline", 1), "verdict"] == "control"
    assert table.loc["elastic"].drop(columns="verdict").isna().all(axis=None)
    assert {str(dtype) for dtype in table.drop(columns="verdict").dtypes} == {"float64"}
    assert results(tmp_path).equals(table)
