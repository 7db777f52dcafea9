"""Compare ids in one buffer with a plain list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.alignment import ids as module
from tallystick.alignment.ids import Ids
from tallystick.errors import DataError

LISTS = st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"\x00", b"a\x00", b"same"]), max_size=20)


@given(ids=LISTS, data=st.data())
def test_they_are_what_a_list_is(ids, data):
    kept = Ids.of(ids)
    assert (len(kept), list(kept), Ids.of(kept) is kept) == (len(ids), ids, True)
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=9)) if ids else []
    assert list(kept.gather(np.array(rows, dtype=np.int64))) == [ids[row] for row in rows] == [kept[row] for row in rows]
    span = data.draw(st.slices(len(ids)))
    assert list(kept[span]) == ids[span]
    assert kept.repeated() == len(ids) - len(set(ids))
    assert kept.begin_with(b"a\x00") == any(identifier.startswith(b"a\x00") for identifier in ids)


def test_they_come_in_pieces(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 3)
    ids = [b"%d" % number for number in range(7)]
    assert list(Ids.of(ids).pieces()) == [ids[:3], ids[3:6], ids[6:]]


@pytest.mark.parametrize("wrong", ["text", 3, None])
def test_what_is_no_bytes_is_refused(wrong):
    with pytest.raises(DataError, match="1 of this side's 2 ids are not bytes"):
        Ids.of([b"a", wrong])


def test_a_repr_shows_no_id():
    assert repr(Ids.of([b"alice"])) == "Ids(1)"
