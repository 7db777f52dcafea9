"""Train the default network with every way of linking rows: embedded numbers, AdamW with a cosine schedule, averaged weights."""

import pytest
import similar
import tiny

from tallystick.simulation import simulate
from tallystick.tables import encoder

PARTIES = ("bank", "shop")
DEFAULTS = {"model": {}, "training": {"epochs": 12}, "evaluation": {"bootstrap": 0, "own_columns_boosting": False}}


@pytest.mark.long
@pytest.mark.parametrize("method", ["intersection", "union"])
def test_joining_pays_by_the_defaults(method, monkeypatch):
    monkeypatch.setattr(encoder, "ENOUGH_ROWS", 200)
    contract = tiny.contract_values(PARTIES, alignment__method=method, union__audit=False, **DEFAULTS)
    result = simulate(contract, tiny.tables(PARTIES, rows=700), tiny.columns(PARTIES))
    _check(result)
    assert result.evaluation["joint"]["auc"]["value"] > result.evaluation["local_baseline"]["auc"]["value"] + 0.05


@pytest.mark.long
def test_linking_by_similar_keys_pays_by_the_defaults(monkeypatch):
    monkeypatch.setattr(encoder, "ENOUGH_ROWS", 60)
    parties = similar.PARTIES
    result = simulate(similar.contract_values(parties, **DEFAULTS), similar.tables(parties), similar.columns(parties))
    _check(result)
    assert result.evaluation["joint"]["rmse"]["value"] < result.evaluation["local_baseline"]["rmse"]["value"]


def _check(result):
    """Pin the defaults, because the tests below would silently test something else if one changed."""
    notes = " ".join(result.data.notes)
    assert "piecewise-linear embeddings" in notes
    assert "training.batch_size = auto" in notes
    assert (result.contract.summary["optimizer"], result.contract.summary["learning rate"]) == ("adamw", "0.001, cosine")
    assert "ema: 0.995" in result.contract.yaml
