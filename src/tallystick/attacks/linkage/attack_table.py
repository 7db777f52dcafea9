"""List the attacks on linking by similarity. Each attack has a file here and a row in this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tallystick.attacks.linkage.cells import Cells
from tallystick.attacks.linkage.geometry import FilterGeometry, RankGeometry
from tallystick.attacks.linkage.greedy import Greedy
from tallystick.attacks.linkage.trilateration import Trilateration
from tallystick.attacks.linkage.view import (
    FeaturePartyView,
    FiltersView,
    LabelPartyView,
    LinkageAttack,
    LinkageView,
    RanksView,
    Seat,
)

V = TypeVar("V", bound=LinkageView)


@dataclass(frozen=True, kw_only=True)
class LinkageAttackRow(Generic[V]):
    """An attack, the view that it reads, a line for the report on how it works, and how many keys it must know."""

    attack: LinkageAttack[V]
    view: type[V]
    description: str
    known_keys: int = 0

    @property
    def seat(self) -> Seat:
        """Return the role of the attacker."""
        return self.view.seat


LINKAGE_ATTACKS: Mapping[str, LinkageAttackRow[Any]] = MappingProxyType(
    {
        "greedy": LinkageAttackRow[LabelPartyView](
            attack=Greedy(),
            view=LabelPartyView,
            description="a guess at the distance that the highest similarity implies",
        ),
        "trilateration": LinkageAttackRow[LabelPartyView](
            attack=Trilateration(),
            view=LabelPartyView,
            description="the place that fits the distances to all own rows that link to a key; noise averages out",
        ),
        "cells": LinkageAttackRow[FeaturePartyView](
            attack=Cells(),
            view=FeaturePartyView,
            description="the place whose nearest own keys are those that are linked; needs no similarities",
        ),
        "rank-geometry": LinkageAttackRow[RanksView](
            attack=RankGeometry(),
            view=RanksView,
            description="a key read from its rank among pivots, which are spread evenly over the contract's range",
        ),
        "filter-geometry": LinkageAttackRow[FiltersView](
            attack=FilterGeometry(),
            view=FiltersView,
            description="steps between overlapping filters add up to a map, and ten known keys fix its position",
            known_keys=10,
        ),
    }
)
