"""Apply the Gaussian mechanism on a grid: vectors of bounded norm are rounded to integers and get integer noise.

The grid's step is at most 1/256 of the clip over sqrt(D), and increases the noise by at most 1/200. The sensitivity includes the
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

_FINENESS = 256  # at least this many steps in the ball's radius over sqrt(D): rounding costs at most 1/512 of the noise
_LEAST_DEVIATION = 32.0  # in steps: smoothing costs 2.25 of them, at most 1/400 of the noise
_CLIPPING_ERROR = 2.0**-30  # a norm in float64 has a far smaller error


@dataclass(frozen=True, kw_only=True)
class GridGaussian:
    """A mechanism for vectors within a ball. Each coordinate that it releases is an integer times a power of two.

    Two vectors of the ball are at most 2 radius apart, plus sqrt(D) steps of the grid after rounding; noise is ``multiplier``
    times that. A release reveals no more than a Gaussian release of this multiplier (``DiscreteGaussian``), in floating point as
    well as in theory.

    Args:
        radius: radius of the ball, above 0.
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
        """Return the deviation of continuous noise that would be enough, in steps."""
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
        """Name the use of keyed noise. Noise of other settings is independent of it."""
        return f"{name} {self.step.hex()} {self.deviation.hex()}".encode()

    def noisy(self, on_grid_RD: Ints, bits: Bits) -> Floats:
        """Return the release: floats that depend only on the integers with their noise."""
        noise_RD = DiscreteGaussian.hiding(self.deviation).draw(bits, columns=self.width)
        sent_RD: Floats = (on_grid_RD + noise_RD).astype(np.float64) * self.step
        return sent_RD
