"""Windows: every row is in one, each is large enough, and windows of several days show no more than the smallest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import DataError
from tallystick.scoring.windows import windows

SECRET = bytes(range(32))
NAMES = st.sets(st.integers(0, 300).map(lambda number: b"id-%d" % number), min_size=20, max_size=200)


def drawn(names, size, secret=SECRET):
    names = sorted(names)
    return [{names[place] for place in places} for places in windows(names, size=size, key=secret)]


@given(names=NAMES, size=st.integers(1, 20))
def test_every_row_is_in_one_window_and_a_window_is_large_enough(names, size):
    found = drawn(names, size)
    assert sorted(name for window in found for name in window) == sorted(names)
    assert min(map(len, found)) >= size


@given(before=NAMES, after=NAMES, size=st.integers(1, 20))
def test_of_a_rows_windows_before_and_after_others_came_and_went_one_holds_the_other(before, after, size):
    stayed = before & after
    for old in drawn(before, size):
        for new in drawn(after, size):
            if old & new & stayed:  # there is a row that these windows belong to
                assert old & stayed <= new or new & stayed <= old


def test_which_rows_share_a_window_hangs_on_the_secret_and_they_are_not_much_larger_than_they_have_to_be():
    names = [b"id-%d" % number for number in range(5000)]
    found = drawn(names, 32)
    assert found != drawn(names, 32, secret=bytes(32))
    assert sum(map(len, found)) / len(found) < 70


def test_fewer_rows_than_a_window_has_are_refused():
    with pytest.raises(DataError, match="20 rows are common, and the contract hides each among 21"):
        drawn({b"%d" % number for number in range(20)}, 21)


def test_rows_that_leave_narrow_a_window_down_and_nothing_prevents_it():
    """A side that leaves out half of its rows of a window sees by the next question in which half the wanted one is."""
    names = [b"id-%d" % number for number in range(1000)]
    wanted, left, looks = names[7], set(names), 1
    (seen,) = (window for window in drawn(left, 32) if wanted in window)
    first = len(seen)
    while len(seen) > 1:
        left -= set(sorted(seen)[: len(seen) // 2])
        seen &= {name for window in drawn(left, 32) if wanted in window for name in window} if wanted in left else seen - left
        left, looks = set(names), looks + 1
    assert seen == {wanted}
    assert looks <= 2 + first.bit_length()
