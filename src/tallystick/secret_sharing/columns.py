"""Say who holds the columns of a head: each party its own, and the label party and a feature party shares of their products."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
FACTORS = (8, 32)
"""Columns of the label party and of each feature party that are multiplied, each with each: the last ones of a party."""


@dataclass(frozen=True, kw_only=True)
class HeadColumns:
    """The columns in order: the label party's, each feature party's, then the label party's products with each feature party.

    Args:
        counts: numbers of columns of the label party and of each feature party.
    """

    counts: tuple[int, ...]

    @cached_property
    def factors(self) -> tuple[int, ...]:
        """Count the factors of the label party, and of each feature party."""
        return tuple(min(FACTORS[place > 0], count) for place, count in enumerate(self.counts))

    @cached_property
    def products(self) -> tuple[int, ...]:
        """Count the products with each feature party's factors."""
        return tuple(self.factors[0] * count for count in self.factors[1:])

    @cached_property
    def all(self) -> int:
        """Count all columns."""
        return sum(self.counts) + sum(self.products)

    @cached_property
    def held(self) -> tuple[Index, ...]:
        """Return, for each party, the columns of its matrix: its own, and those of which it holds shares."""
        own = self._own
        ends = np.cumsum([sum(self.counts), *self.products])
        shared = [np.arange(start, end) for start, end in pairwise(ends)]
        both = [np.concatenate(pair) for pair in zip(own[1:], shared, strict=True)]
        return (np.concatenate([own[0], *shared]), *both)

    @cached_property
    def others(self) -> tuple[Index, ...]:
        """Return, for each party, the columns in which others take part: all but its own."""
        return tuple(np.setdiff1d(np.arange(self.all), own) for own in self._own)

    @property
    def _own(self) -> list[Index]:
        ends = np.cumsum([0, *self.counts])
        return [np.arange(start, end) for start, end in pairwise(ends)]

    @property
    def widest(self) -> int:
        """Return the largest number of columns that crosses for a row."""
        return max(len(each) for each in (*self.held, *self.others))

    @property
    def products_of_a_row(self) -> int:
        """Count the products of a row that are computed together, at least 1."""
        return max(math.prod(self.factors[:2]), *self.products, 1)
