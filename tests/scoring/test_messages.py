"""Values that are no key are refused when the message is read, before any store sees them."""

import msgspec
import pytest

from tallystick.network.messages import MalformedMessage, decode, encode
from tallystick.scoring.scoring_messages import KEY_BYTES, RowQuestion


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a\0b", b"k" * (KEY_BYTES + 1)])
def test_a_question_with_a_key_that_is_none_is_malformed(key):
    question = RowQuestion(number=1, keys=(b"good",))
    msgspec.structs.force_setattr(question, "keys", (b"good", key))
    with pytest.raises(MalformedMessage):
        decode(encode(question), RowQuestion)


def test_a_question_with_keys_comes_through():
    question = RowQuestion(number=1, keys=("\u00e9".encode(), b"k" * KEY_BYTES, b""))
    assert decode(encode(question), RowQuestion) == question
