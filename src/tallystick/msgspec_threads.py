"""Make msgspec's types safe to decode in several threads."""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_known: set[object] = set()
_one_at_a_time = threading.Lock()


def prepared(kind: T) -> T:
    """Return the type after msgspec has looked up its fields.

    msgspec looks them up when it first decodes a type. If a second thread decodes the same type at that time, the process crashes
    (msgspec 0.22). The parties of a simulation are such threads.
    """
    if kind not in _known:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _known.add(kind)
    return kind
