"""Compare orders by pairs of words with NumPy's sort of both, with and without repeated first words."""

import numpy as np
import pytest

from tallystick.alignment.matching import order_of_pairs
from tallystick.alignment.randomness import SecureRandom


@pytest.mark.parametrize("bound", [3, 2**64 - 1])
def test_pairs_are_ordered_by_the_first_word_and_then_by_the_second(bound):
    first, second = np.random.default_rng(1).integers(0, bound, (2, 500), dtype=np.uint64)
    assert np.array_equal(order_of_pairs(first, second), np.lexsort((second, first)))


def test_a_permutation_is_the_order_of_the_drawn_keys():
    drawn = np.random.default_rng(2).bytes(16 * 300)
    keys = np.frombuffer(drawn, dtype=np.uint64).reshape(-1, 2)
    assert np.array_equal(SecureRandom(source=lambda _: drawn).permutation(300), np.lexsort((keys[:, 0], keys[:, 1])))
