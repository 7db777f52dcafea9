"""Edges of bins: heavy values are edges, and the others are spread evenly, for any column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.tables.bins import bin_edges

VALUES = st.lists(st.sampled_from([0.0, 1.0]) | st.integers(-50, 50).map(float) | st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 20))
def test_edges_are_distinct_values_of_the_column_and_reach_its_ends(values: list[float], bins: int) -> None:
    column = np.array(values)
    edges = bin_edges(column, bins=bins)
    distinct = np.unique(column)
    if len(distinct) == 1:
        assert edges == ()
        return
    assert 2 <= len(edges) <= bins + 1
    assert list(edges) == sorted(set(edges))
    assert set(edges) <= set(distinct.tolist())
    assert (edges[0], edges[-1]) == (distinct[0], distinct[-1])
    if len(distinct) <= bins + 1:
        assert edges == tuple(distinct)


@given(VALUES, st.integers(2, 20))
def test_a_value_as_heavy_as_two_bins_is_an_edge(values: list[float], bins: int) -> None:
    column = np.array(values)
    distinct, counts = np.unique(column, return_counts=True)
    heavy = distinct[counts >= 2 * len(column) / bins]
    if len(distinct) > 1 and len(heavy) + 2 <= bins:
        assert set(heavy) <= set(bin_edges(column, bins=bins))


def test_without_ties_the_edges_are_quantiles() -> None:
    column = np.random.default_rng(1).normal(size=10_001)
    edges = bin_edges(column, bins=10)
    assert np.quantile(column, np.linspace(0, 1, 11)) == pytest.approx(edges, abs=0.02)


def test_a_column_full_of_zeros_keeps_its_bins_for_the_rest() -> None:
    """Plain quantiles leave one bin for the tenth that is not zero; here there are nearly all bins."""
    rng = np.random.default_rng(2)
    column = np.where(rng.random(20_000) < 0.9, 0.0, rng.lognormal(size=20_000))
    edges = np.array(bin_edges(column, bins=32))
    assert (len(edges), edges[0]) == (33, 0.0)
    share = np.histogram(column[column > 0], bins=edges)[0] / (column > 0).sum()
    assert share.max() < 2 / 32
    assert len(np.unique(np.quantile(column, np.linspace(0, 1, 33)))) < 6
