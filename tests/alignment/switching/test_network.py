"""Compare the network of switches with direct permutations."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.alignment.switching import network as module
from tallystick.alignment.switching.network import WIDEST, Network, comparisons, route


def assert_routed(network, target):
    target = np.array(target, dtype=np.int32)
    choices, behind = route(network, target), np.arange(network.size)
    for layer, choice in zip(network.layers(), choices, strict=True):
        module._switch(layer, choice, behind)
    assert np.array_equal(behind[target], np.arange(network.size))
    assert [len(choice) for choice in choices] == network.switches()


@pytest.mark.parametrize("size", range(1, 7))
def test_one_block_permutes_in_every_order(size):
    network = Network(least=size)
    assert (network.size, network.levels) == (size, 0)
    for target in permutations(range(size)):
        assert_routed(network, target)


@pytest.mark.parametrize(("least", "widest", "levels"), [(3, 2, 1), (4, 2, 1), (5, 3, 1), (6, 3, 1)])
def test_halved_blocks_permute_in_every_order(least, widest, levels, monkeypatch):
    monkeypatch.setattr(module, "WIDEST", widest)
    network = Network(least=least)
    assert network.levels == levels
    for target in permutations(range(network.size)):
        assert_routed(network, target)


@given(least=st.integers(1, 700), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_any_size_permutes_in_random_orders(least, seed):
    network = Network(least=least)
    assert least <= network.size <= least * 1.25
    assert_routed(network, np.random.default_rng(seed).permutation(network.size))


@pytest.mark.parametrize("width", range(1, WIDEST + 1))
def test_comparisons_sort(width):
    """By the zero-one principle a network of comparisons that sorts all zeros and ones sorts everything."""
    for values in product((0, 1), repeat=width):
        row = list(values)
        for first, second in comparisons(width):
            row[first], row[second] = sorted((row[first], row[second]))
        assert row == sorted(values)


def test_a_million_bins_take_as_many_switches_as_is_said():
    network = Network(least=1_279_002)
    assert network.size == 1_310_720
    assert sum(network.switches()) == 25_952_256
