"""Sides that meet again use the former alignment if all have kept it, and no other."""

import threading

import pytest

from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.scoring.scoring_messages import AlignmentKept, AlignmentNext
from tallystick.serving.kept_alignment import meet_feature_party, meet_label_party

OLD, NEW = "0011223344556677", "ab" * 8


def met(label_kept, *kept):
    pairs = [memory_channels("bank", f"shop-{number}", timeout_s=10) for number in range(len(kept))]
    found = {}

    def feature_party(number):
        found[number] = meet_feature_party(kept[number], pairs[number][1])

    threads = [threading.Thread(target=feature_party, args=(number,)) for number in range(len(kept))]
    for thread in threads:
        thread.start()
    own = meet_label_party(label_kept, [pair[0] for pair in pairs], draw=lambda count: b"\xab" * count)
    for thread in threads:
        thread.join(10)
    assert all(each == own for each in found.values())
    return own


def test_an_alignment_that_all_have_kept_is_taken_up_and_any_other_made_anew():
    assert met(OLD, OLD) == met(OLD, OLD, OLD) == (OLD, True)
    for label_kept, *kept in ((OLD, ""), ("", OLD), ("", ""), (OLD, NEW), (OLD, OLD, ""), (OLD, OLD, NEW)):
        assert met(label_kept, *kept) == (NEW, False)


@pytest.mark.parametrize(("kept", "said"), [(OLD, NEW), ("", OLD), ("", "")])
def test_a_label_party_that_takes_up_what_was_not_kept_is_not_believed(kept, said):
    own, theirs = memory_channels("shop", "bank", timeout_s=5)
    theirs.send(AlignmentNext(name=said, again=True))
    with pytest.raises(ProtocolError, match=r"^bank: AlignmentNext"):
        meet_feature_party(kept, own)


def test_a_name_that_is_too_long_is_none():
    own, theirs = memory_channels("bank", "shop", timeout_s=5)
    theirs.send(AlignmentKept(name="x" * 33))
    with pytest.raises(ProtocolError, match=r"^shop"):
        meet_label_party("x" * 33, [own], draw=bytes)
