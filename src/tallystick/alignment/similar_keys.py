"""Hold the keys that are linked by similarity, for both parties and for the attacks on them: numbers and texts.

Shapes: R rows with a key, D numbers of a key.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tallystick.alignment.terms import SimilarityConfig

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class SimilarKeys:
    """The keys of R rows.

    Args:
        numbers_RD: numeric dimensions, in their own units.
        texts: text dimensions, R values each.
    """

    numbers_RD: Floats
    texts: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.numbers_RD)

    def scaled(self, terms: SimilarityConfig, *, weighted: bool = False) -> Floats:
        """Divide the numbers by their scales, and multiply them by their weights if asked."""
        scale_D = np.array([d.scale / (d.weight if weighted else 1) for d in terms.numbers], dtype=np.float64)
        return self.numbers_RD / scale_D

    def with_numbers(self, numbers_RD: Floats) -> "SimilarKeys":
        """Return the same keys with other numbers."""
        return replace(self, numbers_RD=numbers_RD)

    def digest(self) -> bytes:
        """Return a digest of the keys in their order."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.numbers_RD, dtype="<f8").tobytes(), digest_size=16)
        for text in (text for column in self.texts for text in column):
            digest.update(len(text.encode()).to_bytes(4, "big") + text.encode())
        return digest.digest()

    def noise_name(self, contract_hash: str) -> str:
        """Return the name under which the noise on these keys is kept for a contract."""
        return hashlib.blake2b(self.digest() + contract_hash.encode(), digest_size=16).hexdigest()
