"""BLAKE2b of many short inputs: what most of an alignment's time goes to."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Digests = np.ndarray[Any, np.dtype[np.uint8]]


def hash_each(start: Any, inputs: Iterable[bytes]) -> Digests:
    """Hash each input, going on from a copy of one that has begun: this takes half of the time of making each anew.

    Args:
        start: a ``hashlib.blake2b`` object, with its size, key and other parameters; it is left as it is.
        inputs: N of them.

    Returns:
        uint8 (N, size of the digest).
    """
    fresh_hash = start.copy
    digests = []
    for each in inputs:
        hashed = fresh_hash()
        hashed.update(each)
        digests.append(hashed.digest())
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, start.digest_size)
