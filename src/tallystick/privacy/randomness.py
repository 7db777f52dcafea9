"""Seed torch's randomness with a public number or with a secret, if a peer must not repeat what is drawn."""

import hashlib
from typing import TypeAlias

import numpy as np

from tallystick.lazy_torch import Generator, torch

SEED_BITS = 128
Seed: TypeAlias = int | bytes
"""A public number, or a secret of 32 bytes."""

_WORDS = 624  # number of 32-bit words of the Mersenne Twister's state
_AT = 24  # number of bytes before it in get_state()


def secret_generator(seed: int, *, stream: int = 0) -> Generator:
    """Return a torch generator whose whole state follows from a secret seed and the number of a stream.

    ``manual_seed`` keeps 32 bits of a seed, which a peer could try one by one against what it received. Not protected: the
    generator is not cryptographic, so its raw numbers must not be sent; choices made with them may be.
    """
    return _filled(f"tallystick {seed} {stream}".encode())


def generator_of(seed: Seed, use: str, number: int | None = None) -> Generator:
    """Return a torch generator for one use. The same seed gives the same generator.

    Args:
        seed: from a secret the whole state follows, as in ``secret_generator``; a public number is passed to ``manual_seed``.
        use: distinguishes the uses of one secret.
        number: distinguishes several generators of one use.
    """
    if isinstance(seed, bytes):
        return _filled(seed + f" {use} {number}".encode())
    return torch.Generator().manual_seed(seed if number is None else (seed << 20) + number)


def _filled(text: bytes) -> Generator:
    """Return a generator with a state drawn by SHAKE-256 from this text."""
    words_W = np.frombuffer(hashlib.shake_256(text).digest(4 * _WORDS), dtype=np.uint32)
    generator = torch.Generator()
    state = generator.manual_seed(0).get_state()
    state[_AT : _AT + 8 * _WORDS] = torch.from_numpy(words_W.astype(np.int64)).view(torch.uint8)
    return generator.set_state(state)
