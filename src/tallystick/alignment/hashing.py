"""Hash many short inputs by BLAKE2b, which takes most of an alignment's time."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Digests = np.ndarray[Any, np.dtype[np.uint8]]


def hash_each(start: Any, inputs: Iterable[bytes]) -> Digests:
    """Hash each input, starting from a copy of one hash object. This takes half as long as making each object.

    Args:
        start: a ``hashlib.blake2b`` object, with its size, key and other parameters; it is not changed.
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
