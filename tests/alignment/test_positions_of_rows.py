"""Positions become rows: compared with a slow reference; and what a peer may not send."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import error_of

from tallystick.alignment.exchange import send_list
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.repeats import COUNTS, repeat_feature_party, repeat_label_party
from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels


def aligned(rows: list[int]) -> Alignment:
    return Alignment(method="intersection", rows_N=np.array(rows, dtype=np.int64), sizes={"intersection": len(rows)}, learnt=[])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_both_sides_put_the_rows_of_an_id_side_by_side(ids: list[int], data: st.DataObject) -> None:
    """The assertions hold for every order that the operating system's randomness can give, so there is no chance of failing."""
    places = {number: place for place, number in enumerate(dict.fromkeys(ids))}
    id_R = np.array([places[number] for number in ids])
    common = data.draw(st.permutations(range(len(places))).map(lambda order: order[: max(1, len(order) - 1)]))
    label, feature = memory_channels("bank", "shop")
    found = repeat_label_party(aligned(common), id_R, [label], rng=SecureRandom())
    theirs = repeat_feature_party(aligned([10 + each for each in common]), feature, max_rows=len(ids))
    assert theirs.rows_N.tolist() == [10 + each for each in common for number in id_R if number == each]
    assert (id_R[found.rows_N] + 10).tolist() == theirs.rows_N.tolist()
    assert sorted(found.rows_N) == np.flatnonzero(np.isin(id_R, common)).tolist()
    assert found.learnt == []
    assert theirs.learnt == [f"how many rows bank has for each of the {len(common)} common ids: {len(found)} in all"]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.array([1, 0]), "bank has 0 rows for a common id; expected 1 or more"),
        (np.array([-3, 9]), "bank has -3 rows for a common id"),
        (np.array([5, 6]), r"bank has 11 rows for the 2 common ids, over 10; .* set alignment.max_rows"),
        (np.array([2**62, 2**62]), "over 10"),
        (np.array([1.0, 2.0]), "as float64, expected int64"),
        (np.array([1, 2, 3]), "broke off"),
    ],
)
def test_numbers_of_rows_that_cannot_be_are_refused_before_they_take_memory(counts: np.ndarray, message: str) -> None:
    label, feature = memory_channels("bank", "shop")
    send_list(label, COUNTS, counts)
    error = error_of(lambda: repeat_feature_party(aligned([4, 7]), feature, max_rows=10))
    assert isinstance(error, ProtocolError)
    with pytest.raises(ProtocolError, match=message):
        raise error
