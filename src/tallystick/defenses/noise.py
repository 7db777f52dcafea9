"""Draw the noise of defences, which carries no guarantee by itself. Shapes: B batch, D cut width.

An experiment passes a seeded ``torch.Generator``. A job passes a ``NoiseStream``, or ``RowNoise`` for embeddings, because torch's
CPU generator keeps 32 bits of its seed: a party that receives noisy gradients could try all seeds and remove the noise.

There are two kinds of noise. ``standard_normal`` and ``uniform`` are floating-point numbers: fast, for defences without a
promise. Every defence that promises an epsilon takes ``bits`` and makes integers from them (``privacy/exact.py``).
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.lazy_torch import Generator, Tensor, torch
from tallystick.privacy.exact import Bits, Ints, SequentialBits
from tallystick.privacy.keyed import KeyedBits, check_secret


class NoiseStream:
    """Draw pseudorandom numbers from AES-256 in counter mode: one stream per secret, step and hidden data.

    Guarantee: without the secret nobody who cannot break AES or BLAKE2 can distinguish a stream from fresh random bits. The same
    secret, step and ``hides`` give the same bits, so a resumed run sends what it sent before and keeps no state. If a peer's
    columns have changed meanwhile, other data is hidden at that step, and the noise is different, so the difference of the two
    reveals nothing. A fresh run takes a fresh secret.

    Args:
        secret: at least 16 bytes from the operating system's generator; they must never leave this party.
        step: the training step; one stream for each.
        hides: the bytes that the noise will hide, or a hash of them.

    Raises ConfigError for a shorter secret.
    """

    def __init__(self, secret: bytes, *, step: int = 0, hides: bytes = b"") -> None:
        check_secret(secret)
        about = step.to_bytes(8, "big") + hides
        key = hashlib.blake2b(about, key=secret[:64], digest_size=32, person=b"tallystick noise").digest()
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Tensor:
        """Draw this many uniform int32."""
        return torch.frombuffer(self.bytes(4 * count), dtype=torch.int32, count=count)

    def bytes(self, count: int) -> bytearray:
        """Draw this many uniform bytes, with spare bytes after them."""
        out = bytearray(count + 15)
        self._stream.update_into(bytes(count), out)
        return out


@dataclass(frozen=True, kw_only=True)
class RowNoise:
    """Draw noise for each row separately, from a secret, the row's number, the hidden data and the weights that embedded it.

    The same row with the same embedding by the same weights gets the same noise, with any other rows, so nobody averages it away
    by asking again. Two rows with the same embedding get independent noise. So does a row that two models embed equally, because
    equal noise would show which of a ReLU's units are closed for it.

    Args:
        secret: at least 16 bytes from the operating system's generator; they must never leave this party.
        who_B: a number for each row that identifies it.
        weights: a name of the weights that embed; without one, all weights count as the same.
    """

    secret: bytes = field(repr=False)
    who_B: Ints
    weights: str = ""

    def bits(self, hidden_BD: Ints, *, purpose: bytes) -> KeyedBits:
        """Draw uniform bits for rows that hide these integers."""
        named_rows = np.concatenate([self.who_B[:, None], hidden_BD], axis=1).astype("<i8", order="C")
        if self.weights:
            purpose = b"%s by %s" % (purpose, self.weights.encode())
        return KeyedBits(self.secret, purpose=purpose, hidden=(row.data for row in named_rows))


Randomness: TypeAlias = Generator | NoiseStream
"""The source of a gradient defence's noise."""


def bits(hidden_BD: Ints, generator: "Randomness | RowNoise", *, purpose: bytes) -> Bits:
    """Return uniform bits for the noise of rows that hide these integers. Only ``RowNoise`` reads these, and the purpose."""
    if isinstance(generator, RowNoise):
        return generator.bits(hidden_BD, purpose=purpose)
    if isinstance(generator, NoiseStream):
        return SequentialBits(generator.bytes, rows=len(hidden_BD))
    device = generator.device

    def random_bytes(count: int) -> bytes:
        return torch.randint(256, (count,), generator=generator, dtype=torch.uint8, device=device).cpu().numpy().tobytes()

    return SequentialBits(random_bytes, rows=len(hidden_BD))


def uniform(count: int, generator: Randomness) -> Tensor:
    """Draw float64 uniforms in (0, 1)."""
    if isinstance(generator, torch.Generator):
        uniforms = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device).cpu()
        return uniforms.clamp_min_(2.0**-54)
    # 32 bits are enough for a uniform that picks a partner or a mixing weight.
    return generator.words(count).to(torch.float64).add_(0.5).mul_(2.0**-32).add_(0.5)


def standard_normal(rows: int, columns: int, generator: Randomness, *, like: Tensor) -> Tensor:
    """Draw independent standard normals (rows, columns) with type and device of ``like``."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if isinstance(generator, torch.Generator):
        normals = torch.randn(rows, columns, generator=generator, dtype=dtype, device=generator.device)
    elif rows * columns == 0:
        normals = torch.empty(rows, columns, dtype=dtype)
    else:  # by the method of Box and Muller
        half = (rows * columns + 1) // 2
        words = generator.words(2 * half)
        radius, angle = words[:half], words[half:]
        # 31 bits for the radius: the largest normal is 6.7, and a larger one has a chance of 2^-31.
        radius = radius.bitwise_and(0x7FFFFFFF).to(dtype).add_(0.5).mul_(2.0**-31).log_().mul_(-2).clamp_min_(0).sqrt_()
        angle = angle.to(dtype).mul_(2 * math.pi * 2.0**-32)
        normals = torch.cat([radius * angle.cos(), radius * angle.sin()])[: rows * columns].view(rows, columns)
    return normals.to(device=like.device, dtype=like.dtype)
