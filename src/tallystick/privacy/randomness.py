"""Secret randomness for what torch draws: stand-ins on a union, noise on them, shuffles that a peer must not repeat."""

import hashlib

import numpy as np
import torch

SEED_BITS = 128
_WORDS = 624  # of 32 bits: the Mersenne Twister's state
_AT = 24  # bytes before it in what get_state() gives


def secret_generator(seed: int, *, stream: int = 0) -> torch.Generator:
    """A torch generator whose whole state follows from a secret seed and the number of a stream.

    ``manual_seed`` keeps 32 bits of a seed, which a peer could try one by one against what it received. Not protected: the
    generator is no cryptographic one, so its raw numbers must not leave; what is chosen by them does.
    """
    words_W = np.frombuffer(hashlib.shake_256(f"tallystick {seed} {stream}".encode()).digest(4 * _WORDS), dtype=np.uint32)
    generator = torch.Generator()
    state = generator.manual_seed(0).get_state()
    state[_AT : _AT + 8 * _WORDS] = torch.from_numpy(words_W.astype(np.int64)).view(torch.uint8)
    return generator.set_state(state)
