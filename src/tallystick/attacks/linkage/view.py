"""What an attacker has of a linkage by similarity, and where it says that keys lie.

Shapes: N rows of the label party, M of a feature party, K links, D dimensions, T targets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Seat = Literal["label party", "feature party", "helper"]
OnProgress = Callable[[int, int], None]
"""Told how many of how many targets an attack is done with."""


def quietly(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, kw_only=True)
class DistanceModel:
    """How the helper measured, as every party knows it from the contract and the scale.

    Args:
        bits_per_unit_D: of Hamming distances, expected bits per unit of each dimension; None where distances are Euclidean.
        window: t: a dimension's Hamming distance grows no more beyond twice this.
        mean, deviation, sigma: how distances became similarities (``SimilarityScale``).
    """

    bits_per_unit_D: Floats | None
    window: float
    mean: float
    deviation: float
    sigma: float

    def distance(self, first_PD: Floats, second_PD: Floats) -> Floats:
        """The distance that two keys are expected to have."""
        apart_PD = np.abs(first_PD - second_PD)
        if self.bits_per_unit_D is None:
            return np.asarray(np.sqrt((apart_PD**2).sum(axis=-1)))
        return np.asarray((self.bits_per_unit_D * np.minimum(apart_PD, 2 * self.window)).sum(axis=-1))

    def distance_of(self, similarity: Floats, *, shrink: bool) -> Floats:
        """The distance behind a noisy similarity: what it says, or shrunk to the mean as a Gaussian prior would have it."""
        standard = similarity * math.sqrt(1 + self.sigma**2)
        return np.asarray(-(standard / (1 + self.sigma**2 if shrink else 1)) * self.deviation - self.mean)

    def similarity(self, distance: Floats, noise: Floats) -> Floats:
        """The noisy similarity of a distance, ``noise`` being standard normal."""
        return np.asarray(((-distance - self.mean) / self.deviation + self.sigma * noise) / math.sqrt(1 + self.sigma**2))


@dataclass(frozen=True, kw_only=True)
class LinkageView:
    """One seat's view of a linkage, and what it knows anyhow; the truth is not in here.

    Args:
        seat: whose it is.
        own_ND: the attacker's keys, scaled: of each position (label party), of each number (feature party); the helper has none.
        numbers_NK: links; -1 pads.
        targets: rows of the other side: M numbers (label party), N positions (feature party), rows (helper).
        metric: how distances are measured.
        similarity_NK: noisy similarities (label party).
        ranks_ND2: ranks of the other side's keys (helper).
        filters: a dimension's filters, packed, per dimension (helper).
        known_T: targets whose key the attacker knows (helper: without any, geometry has neither place nor direction).
        known_TD: their keys.
        low_D, bits_D, extent_D: of ranks, the contract's range: least value, pivots, and the length that they cover.
    """

    seat: Seat
    targets: int
    metric: DistanceModel
    own_ND: Floats | None = None
    numbers_NK: Integers | None = None
    similarity_NK: Floats | None = None
    ranks_ND2: Integers | None = None
    filters: tuple[np.ndarray[Any, np.dtype[np.uint8]], ...] | None = None
    known_T: Integers | None = None
    known_TD: Floats | None = None
    low_D: Floats | None = None
    bits_D: Floats | None = None
    extent_D: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where an attacker says that keys lie: the targets that it placed, and their places (T, D).

    ``bound_T`` marks those of which it knows no more, in some dimension, than that they lie beyond where similarity saturates.
    """

    targets_T: Integers
    place_TD: Floats
    bound_T: np.ndarray[Any, np.dtype[np.bool_]] | None = None


class LinkageAttack(Protocol):
    """Reads a view and places targets; sees nothing else."""

    def __call__(self, view: LinkageView, *, rng: np.random.Generator, progress: OnProgress = quietly) -> Located:
        """Place targets of the view."""
        ...


def links_of(view: LinkageView) -> tuple[Integers, Integers, Integers]:
    """Every link as (position, number, place among the position's links), by number."""
    assert view.numbers_NK is not None, "this seat has links"
    position_L, place_L = np.nonzero(view.numbers_NK >= 0)
    number_L = view.numbers_NK[position_L, place_L]
    order_L = np.argsort(number_L, kind="stable")
    return position_L[order_L], number_L[order_L], place_L[order_L]
