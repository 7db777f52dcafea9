"""The other side's messages in a linkage by similarity are checked, and the error names their sender."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.alignment import exchange
from tallystick.alignment.encoding import MAX_TEXT, Texts, encode_keys, receive_keys, send_array
from tallystick.alignment.exchange import CHUNK_ROWS, Size, receive_list, send_list
from tallystick.alignment.outcome import SimilarityScale
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity import KeyShape, LinksDigest, Scale, link_feature_party, link_helper, link_label_party
from tallystick.errors import DataError, PeerLost, ProtocolError
from tallystick.network.channel import memory_channels

from .roles import in_threads
from .test_similarity import PLACES, places, terms_of

RNG = SecureRandom(source=np.random.default_rng(1).bytes)
TITLE = {"name": "title", "kind": "text"}


class Replacing:
    """A channel that replaces each message of some kinds."""

    def __init__(self, channel, replaced):
        self._channel, self.peer, self._replaced = channel, channel.peer, replaced

    def send(self, message):
        self._channel.send(self._replaced if isinstance(message, type(self._replaced)) else message)

    def receive(self, kind):
        return self._channel.receive(kind)


def titles(rows):
    return SimilarKeys(numbers_RD=np.empty((rows, 0)), texts=(tuple(f"title {number}" for number in range(rows)),))


def link(keys, terms, replaced, *, of_helper=False, scales=None):
    """Run all three roles, and change what shop, or the helper, sends."""

    def of(channel, *, changed):
        return Replacing(channel, replaced) if changed and replaced is not None else channel

    label_feature, feature_label = memory_channels("bank", "shop", timeout_s=3)
    label_helper, helper_label = memory_channels("bank", "helper", timeout_s=3)
    feature_helper, helper_feature = memory_channels("shop", "helper", timeout_s=3)
    return in_threads(
        lambda: link_label_party(keys, [label_feature], label_helper, terms=terms, rng=RNG, scales=scales),
        lambda: link_feature_party(
            keys,
            of(feature_label, changed=not of_helper),
            of(feature_helper, changed=not of_helper),
            name="shop",
            terms=terms,
            rng=RNG,
        ),
        lambda: link_helper(of(helper_label, changed=of_helper), [of(helper_feature, changed=of_helper)], terms=terms, rng=RNG),
    )


@pytest.mark.parametrize("shape", [[], ["lon: number in degree"], ["\x1b[2J" * 10**4], ["x"] * 10**5])
def test_other_keys_are_refused(shape):
    label = link(places(20), terms_of(PLACES), KeyShape(dimensions=shape))[0]
    assert isinstance(label, ProtocolError)
    assert label.peer == "shop"
    assert "links by other keys" in str(label)
    assert len(str(label)) < 2_500
    assert "\x1b" not in str(label)


@pytest.mark.parametrize("digest", [b"", bytes(32), bytes(10**5)])
def test_links_that_differ_are_found(digest):
    label = link(places(20), terms_of(PLACES), LinksDigest(digest=digest))[0]
    assert isinstance(label, ProtocolError)
    assert "differ from those that it sent shop" in str(label)


@pytest.mark.parametrize(
    "sent",
    [
        Texts(of="name", texts=["x"] * 20),
        Texts(of="title", texts=["x"] * 19),
        Texts(of="title", texts=[]),
        Texts(of="title", texts=["x"] * 19 + [""]),
        Texts(of="title", texts=["x"] * 19 + ["x" * (MAX_TEXT + 1)]),
        Texts(of="\x1b[2J" * 10**4, texts=["x"] * 20),
    ],
)
def test_other_texts_are_refused_by_the_helper(sent):
    helper = link(titles(20), terms_of([TITLE], helper_sees="clear"), sent)[2]
    assert isinstance(helper, ProtocolError)
    assert helper.peer == "shop"
    assert "texts of" in str(helper)
    assert len(str(helper)) < 2_500
    assert "\x1b" not in str(helper)


IMPOSSIBLE = [
    *((math.nan, 1.0), (0.0, math.inf), (0.0, -1.0), (math.inf, 0.0), (-5.0, 0.0), (0.0, math.nan)),
    *((-1e308, 1e308), (-5.0, 1e308), (-1e308, 5.0), (-5.0, 5e-324), (5.0, 1.0), (-5.0, 1e-12)),
]


@pytest.mark.parametrize(("mean", "deviation"), IMPOSSIBLE)
def test_a_scale_of_an_earlier_run_that_is_no_number_is_refused_by_the_helper(mean, deviation):
    own, label_helper = memory_channels("helper", "bank", timeout_s=2)
    label_helper.send(Scale(mean=mean, deviation=deviation))
    shop, _ = memory_channels("helper", "shop", timeout_s=0.0)
    with pytest.raises(ProtocolError, match=r"^bank"):
        link_helper(own, [shop], terms=terms_of(PLACES), rng=RNG)


@pytest.mark.parametrize("terms", [{}, {"noise": {"tau": 0.5}}])
@pytest.mark.parametrize(("mean", "deviation"), IMPOSSIBLE)
def test_a_scale_that_no_distances_have_is_refused_by_the_parties(mean, deviation, terms):
    found = link(places(20), terms_of(PLACES, **terms), Scale(mean=mean, deviation=deviation), of_helper=True)
    assert [type(error) for error in found[:2]] == [ProtocolError, ProtocolError]
    assert all("cannot have" in str(error) and error.peer == "helper" for error in found[:2])


@pytest.mark.parametrize("helper_sees", ["ranks", "filters", "clear"])
def test_a_scale_that_distances_can_have_is_taken_whatever_the_helper_sees(helper_sees):
    found = link(places(20), terms_of(PLACES, helper_sees=helper_sees), Scale(mean=-2.0, deviation=0.5), of_helper=True)
    assert [outcome.candidates["shop"].scale.mean for outcome in found[:2]] == [-2.0, -2.0]


def test_an_old_scale_by_which_links_have_no_finite_similarity_is_refused_by_the_helper():
    """In the clear a contract does not bound distances, so the scale is compared with the links themselves."""
    old = {"shop": SimilarityScale(mean=-1e-90, deviation=1e-90, sigma=0.0)}
    helper = link(places(20), terms_of(PLACES, helper_sees="clear"), None, scales=old)[2]
    assert isinstance(helper, ProtocolError)
    assert helper.peer == "bank"
    assert "far too small for these links" in str(helper)


@pytest.mark.parametrize("rows", [-1, 0, 4, 10**5 + 1, 50_000_000, 50_000_001, 2**62])
def test_rows_that_no_contract_allows_cost_the_helper_no_memory(rows):
    terms = terms_of([*PLACES, TITLE], text_bits=1 << 20)  # 128 KiB a row: 32,768 rows fill 4 GiB
    own, label_helper = memory_channels("helper", "bank", timeout_s=2)
    helper_feature, shop = memory_channels("helper", "shop", timeout_s=2)
    label_helper.send(Scale(mean=0.0, deviation=0.0))
    for channel, count in ((label_helper, 10), (shop, rows)):
        channel.send(Size(of="encoded keys", rows=count))
    with pytest.raises(ProtocolError, match=f"^shop announced {rows} rows"):
        link_helper(own, [helper_feature], terms=terms, rng=RNG)


@pytest.mark.parametrize("rows", [0, 10**9])
def test_rows_of_the_label_party_are_bounded_too(rows):
    own, label_helper = memory_channels("helper", "bank", timeout_s=2)
    label_helper.send(Scale(mean=0.0, deviation=0.0))
    label_helper.send(Size(of="encoded keys", rows=rows))
    with pytest.raises(ProtocolError, match=f"^bank announced {rows} rows"):
        link_helper(own, [memory_channels("helper", "shop", timeout_s=0.0)[0]], terms=terms_of(PLACES), rng=RNG)


@pytest.mark.parametrize("value", [1e101, -1e308, math.nan, math.inf])
def test_numbers_in_the_clear_whose_squares_are_infinite_are_refused(value):
    """The helper checks it when a peer sends it, and this side before it sends its own."""
    keys = SimilarKeys(numbers_RD=np.array([[1.0, 2.0], [value, 1.0]]))
    terms = terms_of(PLACES, helper_sees="clear", neighbors=1)
    if math.isfinite(value):
        with pytest.raises(DataError, match="over 1e\\+100"):
            encode_keys(keys, terms, bytes(32))
    mine, theirs = memory_channels("helper", "shop", timeout_s=2)
    send_array(theirs, "numbers", keys.numbers_RD)
    with pytest.raises(ProtocolError, match="NaN, infinite or over"):
        receive_keys(mine, 2, terms)


@given(count=st.integers(0, 9 * CHUNK_ROWS), first=st.sampled_from([CHUNK_ROWS, 3 * CHUNK_ROWS]))
def test_a_list_is_the_same_whatever_memory_it_began_with(count, first):
    mine, theirs = memory_channels("helper", "shop", timeout_s=2)
    rows_N3 = np.arange(3 * count, dtype=np.int64).reshape(-1, 3)
    send_list(theirs, "x", rows_N3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "FIRST_ROWS", first)
        np.testing.assert_array_equal(receive_list(mine, "x", count, shape=(3,), dtype=np.int64), rows_N3)


def test_a_list_that_is_announced_and_does_not_come_takes_no_memory():
    mine, theirs = memory_channels("helper", "shop", timeout_s=0.1)
    send_list(theirs, "x", np.zeros((CHUNK_ROWS, 64), dtype=np.uint8))
    tracemalloc.start()
    with pytest.raises(PeerLost):
        receive_list(mine, "x", 50_000_000, shape=(64,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # of 3 GiB that were announced
