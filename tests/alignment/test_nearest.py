"""Compare the exact K most similar rows with brute force over every pair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.alignment.nearest import (
    MAX_TREE_DIMENSIONS,
    PAD,
    Neighbors,
    euclidean,
    nearest,
    nearest_by_ranks,
    rank_distance,
)

SEEDS = st.integers(0, 2**32)


def brute_force(distance_NM, neighbors):
    """By distance, then by number."""
    order_NM = np.argsort(distance_NM, axis=1, kind="stable")[:, :neighbors]
    missing = neighbors - order_NM.shape[1]
    return (
        np.pad(order_NM, ((0, 0), (0, max(missing, 0))), constant_values=PAD),
        np.pad(np.take_along_axis(distance_NM, order_NM, axis=1), ((0, 0), (0, max(missing, 0))), constant_values=np.inf),
    )


def tables(rng):
    """Make two small tables of values on a grid, so that ties and equal rows are common."""
    dimensions = int(rng.integers(1, MAX_TREE_DIMENSIONS + 2))
    grid = int(rng.integers(2, 20))
    return [rng.integers(0, grid, (int(rng.integers(1, 60)), dimensions)) / 7 for _ in range(2)]


def ranks_of(values_ND, pivots, window):
    return np.stack(
        [
            np.stack((np.searchsorted(p, values - window, "left"), np.searchsorted(p, values + window, "right")), axis=1)
            for p, values in zip(pivots, values_ND.T, strict=True)
        ],
        axis=1,
    )


def same(found: Neighbors, expected) -> None:
    np.testing.assert_array_equal(found.numbers_NK, expected[0])
    np.testing.assert_array_equal(found.distance_NK, expected[1])


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, neighbors=st.integers(1, 30))
def test_nearest_is_brute_force_with_ties_in_order_of_number(seed, neighbors):
    first_ND, second_MD = tables(np.random.default_rng(seed))
    found = nearest(first_ND, second_MD, neighbors=neighbors, workers=1)
    same(found, brute_force(euclidean(first_ND[:, None], second_MD[None]), neighbors))


@settings(max_examples=250, deadline=None)
@given(seed=SEEDS, neighbors=st.integers(1, 30), weighted=st.booleans())
def test_nearest_by_ranks_is_brute_force_where_distances_saturate_too(seed, neighbors, weighted):
    rng = np.random.default_rng(seed)
    first_ND, second_MD = tables(rng)
    window = float(rng.uniform(0.1, 1))
    pivots = [np.sort(rng.uniform(-window, 3, int(rng.integers(3, 60)))) for _ in range(first_ND.shape[1])]
    first_ND2, second_MD2 = (ranks_of(values, pivots, window) for values in (first_ND, second_MD))
    weights_D = rng.choice([0.5, 1, 2.5], len(pivots)) if weighted else np.ones(len(pivots))
    found = nearest_by_ranks(first_ND2, second_MD2, neighbors=neighbors, weights_D=weights_D, workers=1)
    same(found, brute_force(rank_distance(first_ND2[:, None], second_MD2[None], weights_D=weights_D), neighbors))


def test_nearest_finds_ties_beyond_those_that_a_tree_is_asked_for():
    ring_MD = np.concatenate([np.full((40, 2), [3.0, 4.0]), np.full((40, 2), [4.0, 3.0])])[
        np.arange(80) // 2 + 40 * (np.arange(80) % 2)
    ]
    found = nearest(np.zeros((1, 2)), ring_MD[::-1], neighbors=11)
    np.testing.assert_array_equal(found.numbers_NK[0], np.arange(11))


def test_nearest_refuses_what_is_no_key():
    good = np.zeros((3, 2))
    for first, second, said in (
        (good, np.zeros((3, 1)), "2 and 1 dimensions"),
        (good, np.array([[0, np.nan]]), "finite"),
        (np.array([[np.inf, 0]]), good, "finite"),
        (good, np.zeros((0, 2)), "0 rows"),
    ):
        with pytest.raises(ValueError, match=said):
            nearest(first, second, neighbors=1)
    with pytest.raises(ValueError, match="neighbors = 0"):
        nearest(good, good, neighbors=0)
