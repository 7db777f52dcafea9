"""An audit attacks a limited number of columns one by one, and names the rest; a vector must not count as many columns."""

import numpy as np
import polars as pl
import pytest

from tallystick.simulation import simulate
from tallystick.watcher import Silent

ROWS = 300


def features_audit(table: pl.DataFrame, *, audit: object = "quick", **party: object):
    """Audit a feature party's columns in a run of one epoch."""
    label = pl.DataFrame({"id": range(ROWS), "y": [row % 2 for row in range(ROWS)]})
    contract = {
        "name": "wide",
        "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}},
        "alignment": {"keys": [{"name": "id"}]},
        "training": {"epochs": 1, "batch_size": 64},
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": audit,
    }
    parties = {"label": {"keys": {"id": "id"}, "label": "y"}, "feature": {"keys": {"id": "id"}, **party}}
    result = simulate(contract, {"label": label, "feature": table}, parties, watcher=Silent())
    return result.sections.features[0]


@pytest.fixture(scope="module")
def numbers_NW():
    return np.random.default_rng(1).normal(size=(ROWS, 130)).astype(np.float32)


@pytest.mark.long
def test_of_a_vector_some_numbers_are_attacked_and_the_rest_is_named(numbers_NW):
    vector = pl.Series("title", numbers_NW, dtype=pl.Array(pl.Float32, numbers_NW.shape[1]))
    table = pl.DataFrame({"id": range(ROWS), "own": numbers_NW[:, 0] + 1.0}).with_columns(vector)
    audit = features_audit(table, vectors=["title"])
    assert {(column.name, column.kind) for column in audit.columns if column.used} == {("own", "numeric"), ("title", "vector")}
    assert {column.cosine is None for column in audit.columns if column.kind == "numeric"} == {True}
    assert all(0 < column.cosine <= 1 for column in audit.columns if column.kind == "vector" and column.value > 0)
    assert "vector 'title': 32 of its 130 numbers, evenly spread, are attacked" in audit.not_measured


def test_of_many_columns_some_are_attacked_and_the_rest_is_counted(numbers_NW):
    """The same for columns that the model was not given."""
    table = pl.DataFrame({"id": range(ROWS)}).hstack(pl.DataFrame(numbers_NW, schema=[f"n{place}" for place in range(130)]))
    audit = features_audit(table, features={"numeric": [f"n{place}" for place in range(125)]})
    assert len({column.name for column in audit.columns if column.used}) == 100
    assert "25 of 125 columns: 100, evenly spread, are attacked" in audit.not_measured
    assert len({column.name for column in audit.columns if not column.used}) == 5
