"""The attacks on linking by similarity: an attack is a file here and a row in this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tallystick.attacks.linkage.cells import Cells
from tallystick.attacks.linkage.geometry import FilterGeometry, RankGeometry
from tallystick.attacks.linkage.greedy import Greedy
from tallystick.attacks.linkage.trilateration import Trilateration
from tallystick.attacks.linkage.view import LinkageAttack, LinkageView, Seat


@dataclass(frozen=True, kw_only=True)
class LinkageAttackRow:
    """An attack, whose view it reads, and what of it.

    Args:
        attack: the attack.
        seat: who can make it.
        reads: what it needs of that view.
        finds: what it locates.
        description: how, in a line for the report.
    """

    attack: LinkageAttack
    seat: Seat
    reads: str
    finds: str
    description: str

    def fits(self, view: LinkageView) -> bool:
        """Whether a view has what it needs."""
        return view.seat == self.seat and getattr(view, self.reads) is not None


LINKAGE_ATTACKS: Mapping[str, LinkageAttackRow] = MappingProxyType(
    {
        "greedy": LinkageAttackRow(
            attack=Greedy(),
            seat="label party",
            reads="similarity_NK",
            finds="the feature party's keys",
            description="a guess at the distance that the highest similarity tells",
        ),
        "trilateration": LinkageAttackRow(
            attack=Trilateration(),
            seat="label party",
            reads="similarity_NK",
            finds="the feature party's keys",
            description="the place that fits the distances to all own rows that link to a key; noise averages out",
        ),
        "cells": LinkageAttackRow(
            attack=Cells(),
            seat="feature party",
            reads="own_ND",
            finds="the label party's keys",
            description="the place whose nearest own keys are those that are linked; needs no similarities",
        ),
        "rank-geometry": LinkageAttackRow(
            attack=RankGeometry(),
            seat="helper",
            reads="ranks_ND2",
            finds="a party's keys",
            description="a key read off its rank among pivots, which lie evenly over the contract's range",
        ),
        "filter-geometry": LinkageAttackRow(
            attack=FilterGeometry(),
            seat="helper",
            reads="filters",
            finds="a party's keys",
            description="steps from filter to filter that overlap add up to a map, which ten known keys put in its place",
        ),
    }
)
