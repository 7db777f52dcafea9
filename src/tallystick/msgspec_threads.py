"""msgspec's types from several threads."""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_known: set[object] = set()
_one_at_a_time = threading.Lock()


def prepared(kind: T) -> T:
    """Return the type once msgspec has looked up its fields.

    It does so when a type is first decoded, and a second thread that decodes the same type meanwhile crashes the process
    (msgspec 0.22); parties of a simulation are such threads.
    """
    if kind not in _known:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _known.add(kind)
    return kind
