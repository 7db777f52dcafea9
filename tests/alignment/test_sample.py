"""A sample that two parties draw alike: the common part of the samples is a sample of the common part."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import of_each

from tallystick.alignment.exchange import Size
from tallystick.alignment.ids import Ids
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.sample import WHOLE, draw_sample, is_drawn
from tallystick.config.alignment import IntersectionConfig
from tallystick.errors import ProtocolError, TallystickError
from tallystick.network.channel import memory_channels
from tallystick.tables.keys import read_keys

IDS = st.sets(st.binary(min_size=1, max_size=6), min_size=1, max_size=40)


def drawn(ids, salt, share):
    """Return the drawn ids of a list."""
    listed = sorted(ids)
    return {each for each, is_in in zip(listed, is_drawn(Ids.of(listed), salt, share=share), strict=True) if is_in}


@settings(max_examples=100, deadline=None)
@given(IDS, IDS, st.binary(min_size=32, max_size=32), st.floats(0.01, 1))
def test_the_sample_of_the_intersection_is_the_intersection_of_the_samples(first, second, salt, share):
    assert drawn(first, salt, share) & drawn(second, salt, share) == drawn(first & second, salt, share)


@settings(max_examples=50, deadline=None)
@given(IDS, st.binary(min_size=32, max_size=32), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_larger_share_has_all_ids_of_a_smaller_one(ids, salt, one, other):
    assert drawn(ids, salt, min(one, other)) <= drawn(ids, salt, max(one, other))
    assert drawn(ids, salt, 1.0) == ids


def sides(first, second, *, rows, max_rows=1_000):
    """Draw both parties' samples by the protocol in two threads."""
    channels = dict(zip(("bank", "shop"), memory_channels("bank", "shop", timeout_s=20), strict=True))
    ids = {"bank": first, "shop": second}

    def side(name):
        own, leads = Ids.of(ids[name]), name == "bank"
        try:
            return draw_sample(own, channels[name], rows=rows, rng=SecureRandom(), leads=leads, max_rows=max_rows)
        except TallystickError:
            channels[name].abort("refused")  # as a job does, so that the other side stops waiting
            raise

    return of_each(("bank", "shop"), side)


def test_both_sides_draw_alike_about_so_many_of_the_smaller_table():
    first, second = [b"%d" % number for number in range(900)], [b"%d" % number for number in range(600, 1_000)]
    samples = sides(first, second, rows=200)
    assert (samples["bank"].others, samples["shop"].others) == (400, 900)
    assert samples["bank"].share == samples["shop"].share == 0.5
    chosen = {
        name: {each for each, is_in in zip(ids, samples[name].is_in_N, strict=True) if is_in}
        for name, ids in (("bank", first), ("shop", second))
    }
    common = set(first) & set(second)
    assert chosen["bank"] & common == chosen["shop"] & common
    # Binomial of 400 by a half: 200 +- 50 is five deviations, a chance below 1e-6 to fall outside
    assert abs(len(chosen["shop"]) - 200) < 50
    again = sides(first, second, rows=200)  # the same half of 400 ids is drawn twice with a chance of about 2^-400
    assert not np.array_equal(again["shop"].is_in_N, samples["shop"].is_in_N)


def test_a_small_table_is_drawn_whole():
    samples = sides([b"a", b"b"], [b"b", b"c", b"d"], rows=200)
    assert all(sample.is_in_N.all() for sample in samples.values())


def test_a_peer_of_too_many_ids_is_refused():
    samples = sides([b"a"], [b"%d" % number for number in range(30)], rows=5, max_rows=20)
    assert isinstance(samples["bank"], ProtocolError)
    assert "takes at most 20" in str(samples["bank"])


def test_a_peer_of_no_ids_is_refused():
    here, there = memory_channels("bank", "shop", timeout_s=5)
    there.send(Size(of=WHOLE, rows=0))
    with pytest.raises(ProtocolError, match="at least 1 are due"):
        draw_sample(Ids.of([b"a"]), here, rows=5, rng=SecureRandom(), leads=True, max_rows=20)


@pytest.mark.parametrize("duplicates", ["first", "all"])
def test_keys_of_a_sample_keep_the_rows_of_their_ids(duplicates):
    frame = pl.DataFrame({"id": ["a", "b", "a", "c", "b", "d"]})
    alignment = IntersectionConfig(method="intersection", keys=[{"name": "id"}], duplicates=duplicates)
    keys = read_keys(frame, columns={"id": "id"}, alignment=alignment)
    part = keys.only(np.array([False, True, False, True]))
    assert list(part.ids) == [b"b", b"d"]
    rows = part.ids_of(np.arange(len(part.rows_R)))
    assert [(row, each) for row, each in zip(part.rows_R.tolist(), rows, strict=True)] == (
        [(1, b"b"), (5, b"d")] if duplicates == "first" else [(1, b"b"), (4, b"b"), (5, b"d")]
    )
