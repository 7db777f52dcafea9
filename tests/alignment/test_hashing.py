"""Many short inputs together get the hashes that each gets alone."""

from hashlib import blake2b

import numpy as np
import pytest

from tallystick.alignment.hashing import hash_each

INPUTS = [b"", b"a", b"b", b"a", bytes(64), b"x" * 65_536, *(bytes([1 << bit]) for bit in range(8))]


@pytest.mark.parametrize(
    "parameters", [{"digest_size": 16, "person": b"tallystick order"}, {"digest_size": 10}, {"key": b"k" * 32, "digest_size": 16}]
)
def test_each_digest_is_that_of_an_object_of_its_own_and_the_one_that_was_begun_stays(parameters):
    start = blake2b(**parameters)
    digests_N = hash_each(start, INPUTS)
    assert digests_N.dtype == np.uint8
    assert [row.tobytes() for row in digests_N] == [blake2b(each, **parameters).digest() for each in INPUTS]
    assert hash_each(start, iter(INPUTS)).tobytes() == digests_N.tobytes()
    assert start.digest() == blake2b(**parameters).digest()


def test_no_input_gives_no_row():
    assert hash_each(blake2b(digest_size=10), []).shape == (0, 10)
