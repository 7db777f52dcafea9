"""The Gaussian mechanism on a grid: vectors of bounded norm, rounded to integers, with integer noise.

The grid is at most 1/256 of the clip over sqrt(D), and makes the noise larger by at most 1/200. The sensitivity includes the
rounding.

Shapes: R rows, D coordinates.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick.privacy.exact import Bits, DiscreteGaussian, Ints

Floats = NDArray[np.float64]

_FINENESS = 256  # steps in the ball's radius over sqrt(D), at least: rounding costs no more than 1/512 of the noise
_LEAST_DEVIATION = 32.0  # in steps: so what smoothing costs, 2.25 of them, is at most 1/400 of the noise
_CLIPPING_ERROR = 2.0**-30  # a norm in float64 is wrong by far less


@dataclass(frozen=True, kw_only=True)
class GridGaussian:
    """Releases vectors of the ball of a radius: each coordinate an integer times a power of two, and of nothing else a function.

    Two vectors of the ball are at most 2 radius apart, and sqrt(D) steps of the grid more once each is rounded to it; noise is
    ``multiplier`` times that. What is sent is no more than could be made of a Gaussian release of this multiplier
    (``DiscreteGaussian``), in floating point as on paper.

    Args:
        radius: of the ball, above 0.
        multiplier: deviation of the noise in units of the sensitivity.
        width: D.
    """

    radius: float
    multiplier: float
    width: int

    @cached_property
    def step(self) -> float:
        """Return the grid's step: the largest power of two that is fine enough."""
        most = min(self.radius / (_FINENESS * math.sqrt(self.width)), 2 * self.radius * self.multiplier / _LEAST_DEVIATION)
        return 2.0 ** math.floor(math.log2(most))

    @cached_property
    def deviation(self) -> float:
        """Return the deviation of the continuous noise that would do, in steps."""
        sensitivity = 2 * self.radius * (1 + _CLIPPING_ERROR) / self.step + math.sqrt(self.width)
        return self.multiplier * sensitivity

    def on_grid(self, values_RD: NDArray[Any]) -> Ints:
        """Clip rows to the ball, in float64, and round them to the grid (R, D)."""
        exact_RD = values_RD.astype(np.float64)
        norm_R1 = np.sqrt((exact_RD * exact_RD).sum(axis=1, keepdims=True))
        scale_R1 = self.radius / np.maximum(norm_R1, self.radius)
        rounded: Ints = np.rint(exact_RD * scale_R1 / self.step).astype(np.int64)
        return rounded

    def purpose(self, name: str) -> bytes:
        """Name the use of keyed noise: noise of other settings is independent of it."""
        return f"{name} {self.step.hex()} {self.deviation.hex()}".encode()

    def noisy(self, on_grid_RD: Ints, bits: Bits) -> Floats:
        """Return what is released: floats that follow from the integers with their noise alone."""
        noise_RD = DiscreteGaussian.hiding(self.deviation).draw(bits, columns=self.width)
        sent_RD: Floats = (on_grid_RD + noise_RD).astype(np.float64) * self.step
        return sent_RD
