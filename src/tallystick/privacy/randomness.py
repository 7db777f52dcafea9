"""Randomness by a public number or by a secret: what torch draws where a peer must not repeat it."""

import hashlib
from typing import TypeAlias

import numpy as np

from tallystick.lazy_torch import Generator, torch

SEED_BITS = 128
Seed: TypeAlias = int | bytes
"""A public number, or a secret of 32 bytes."""

_WORDS = 624  # of 32 bits: the Mersenne Twister's state
_AT = 24  # bytes before it in what get_state() gives


def secret_generator(seed: int, *, stream: int = 0) -> Generator:
    """Return a torch generator whose whole state follows from a secret seed and the number of a stream.

    ``manual_seed`` keeps 32 bits of a seed, which a peer could try one by one against what it received. Not protected: the
    generator is no cryptographic one, so its raw numbers must not leave; what is chosen by them does.
    """
    return _filled(f"tallystick {seed} {stream}".encode())


def generator_of(seed: Seed, use: str, number: int | None = None) -> Generator:
    """Return a torch generator for one use, the same one from the same seed.

    Args:
        seed: of a secret the whole state follows, as in ``secret_generator``; a public number is given to ``manual_seed``.
        use: tells what is drawn from one secret apart.
        number: tells several generators of one use apart.
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
