"""Define the views of a linkage by similarity, and the places of keys that an attacker guesses.

Shapes: N rows of the label party, M of a feature party, K links, D dimensions, T targets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Seat = Literal["label party", "feature party", "helper"]
V_contra = TypeVar("V_contra", contravariant=True)
OnProgress = Callable[[int, int], None]
"""Called with the number of finished targets of an attack, and the number of all."""


def quietly(completed: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, kw_only=True)
class DistanceModel:
    """The helper's distance and similarity, which every party knows from the contract and the scale.

    Args:
        bits_per_unit_D: expected Hamming distance per unit of each dimension; None if distances are Euclidean.
        window: t: a dimension's Hamming distance never exceeds twice this.
        mean, deviation, sigma: how distances became similarities (``SimilarityScale``).
    """

    bits_per_unit_D: Floats | None
    window: float
    mean: float
    deviation: float
    sigma: float

    def distance(self, first_PD: Floats, second_PD: Floats) -> Floats:
        """Compute the expected distance between two keys."""
        apart_PD = np.abs(first_PD - second_PD)
        if self.bits_per_unit_D is None:
            return np.asarray(np.sqrt((apart_PD**2).sum(axis=-1)))
        return np.asarray((self.bits_per_unit_D * np.minimum(apart_PD, 2 * self.window)).sum(axis=-1))

    def distance_of(self, similarity: Floats, *, shrink: bool) -> Floats:
        """Compute the distance that a noisy similarity implies. ``shrink`` moves it towards the mean, like a Gaussian prior."""
        standard = similarity * math.sqrt(1 + self.sigma**2)
        return np.asarray(-(standard / (1 + self.sigma**2 if shrink else 1)) * self.deviation - self.mean)

    def similarity(self, distance: Floats, noise: Floats) -> Floats:
        """Compute the noisy similarity of a distance. ``noise`` is standard normal."""
        return np.asarray(((-distance - self.mean) / self.deviation + self.sigma * noise) / math.sqrt(1 + self.sigma**2))


@dataclass(frozen=True, kw_only=True)
class LabelPartyView:
    """View of the label party for locating a feature party's keys. No view holds the truth.

    Args:
        metric: how distances are measured.
        own_ND: its keys, scaled, by position.
        numbers_NK: links; -1 pads.
        similarity_NK: noisy similarities.
    """

    seat: ClassVar[Seat] = "label party"
    metric: DistanceModel
    own_ND: Floats
    numbers_NK: Integers
    similarity_NK: Floats


@dataclass(frozen=True, kw_only=True)
class FeaturePartyView:
    """View of a feature party for locating the label party's keys.

    Args:
        metric: how distances are measured.
        own_MD: its keys, scaled, by number.
        numbers_NK: links; -1 pads.
    """

    seat: ClassVar[Seat] = "feature party"
    metric: DistanceModel
    own_MD: Floats
    numbers_NK: Integers


@dataclass(frozen=True, kw_only=True)
class RanksView:
    """View of a helper that sees ranks, for locating a party's keys.

    Args:
        ranks_ND2: ranks of the keys.
        low_D, bits_D, extent_D: the contract's range: its least value, its number of pivots, and its length.
    """

    seat: ClassVar[Seat] = "helper"
    ranks_ND2: Integers
    low_D: Floats
    bits_D: Floats
    extent_D: Floats


@dataclass(frozen=True, kw_only=True)
class FiltersView:
    """View of a helper that sees filters, for locating a party's keys.

    Args:
        filters: packed filters, per dimension.
        known_T: rows whose key the helper knows; with none, the geometry has no position and no direction.
        known_TD: their keys.
    """

    seat: ClassVar[Seat] = "helper"
    filters: tuple[np.ndarray[Any, np.dtype[np.uint8]], ...]
    known_T: Integers
    known_TD: Floats


LinkageView = LabelPartyView | FeaturePartyView | RanksView | FiltersView
"""View of one role on a linkage, with what that party knows without it."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """Guessed places of keys: the targets that an attacker placed, and their places (T, D).

    ``bound_T`` marks places that are only a bound: in some dimension the target lies so far away that similarity saturates.
    """

    targets_T: Integers
    place_TD: Floats
    bound_T: np.ndarray[Any, np.dtype[np.bool_]] | None = None


class LinkageAttack(Protocol[V_contra]):
    """Reads a view, and nothing else, and places targets."""

    def __call__(self, view: V_contra, *, rng: np.random.Generator, progress: OnProgress = quietly) -> Located:
        """Place targets of the view."""
        ...


def links_of(view: LabelPartyView) -> tuple[Integers, Integers, Integers]:
    """List every link as (position, number, place among the position's links), ordered by number."""
    position_L, place_L = np.nonzero(view.numbers_NK >= 0)
    number_L = view.numbers_NK[position_L, place_L]
    order_L = np.argsort(number_L, kind="stable")
    return position_L[order_L], number_L[order_L], place_L[order_L]
