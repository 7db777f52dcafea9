"""What the other side puts into the messages of a linkage by similarity is checked, and the error names who sent it."""

import math

import numpy as np
import pytest

from tallystick.alignment.encoding import MAX_TEXT, Texts
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similarity import KeyShape, LinksDigest, Scale, link_feature_party, link_helper, link_label_party
from tallystick.data.similar_keys import SimilarKeys
from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels

from .roles import in_threads
from .test_similarity import PLACES, places, terms_of

RNG = SecureRandom(source=np.random.default_rng(1).bytes)
TITLE = {"name": "title", "kind": "text"}


class Replacing:
    """A channel that sends another message in the place of each of a kind."""

    def __init__(self, channel, replaced):
        self._channel, self.peer, self._replaced = channel, channel.peer, replaced

    def send(self, message):
        self._channel.send(self._replaced if isinstance(message, type(self._replaced)) else message)

    def receive(self, kind):
        return self._channel.receive(kind)


def titles(rows):
    return SimilarKeys(numbers_RD=np.empty((rows, 0)), texts=(tuple(f"title {number}" for number in range(rows)),))


def link(keys, terms, replaced):
    """All three roles; what shop sends to bank and to the helper is changed."""
    label_feature, feature_label = memory_channels("bank", "shop", timeout_s=3)
    label_helper, helper_label = memory_channels("bank", "helper", timeout_s=3)
    feature_helper, helper_feature = memory_channels("shop", "helper", timeout_s=3)
    return in_threads(
        lambda: link_label_party(keys, [label_feature], label_helper, terms=terms, rng=RNG),
        lambda: link_feature_party(
            keys, Replacing(feature_label, replaced), Replacing(feature_helper, replaced), name="shop", terms=terms, rng=RNG
        ),
        lambda: link_helper(helper_label, [helper_feature], terms=terms, rng=RNG),
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


@pytest.mark.parametrize(("mean", "deviation"), [(math.nan, 1.0), (0.0, math.inf), (0.0, -1.0), (math.inf, 0.0)])
def test_a_scale_of_an_earlier_run_that_is_no_number_is_refused_by_the_helper(mean, deviation):
    own, label_helper = memory_channels("helper", "bank", timeout_s=2)
    label_helper.send(Scale(mean=mean, deviation=deviation))
    shop, _ = memory_channels("helper", "shop", timeout_s=0.0)
    with pytest.raises(ProtocolError, match=r"^bank"):
        link_helper(own, [shop], terms=terms_of(PLACES), rng=RNG)
