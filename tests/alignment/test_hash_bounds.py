"""Ids and sizes at the bounds of hashes and tables: every protocol finds what a join of sets in the clear finds.

Ids are empty, prefixes of each other, different in the last byte alone, or very long. Sizes are next to powers of two, where
tables, networks and stores change their shape.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import short_lane_of

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.overlap import OverlapTerms, overlap_comparing_side, overlap_permuting_side
from tallystick.errors import DataError, TallystickError

from .roles import RNG, in_threads
from .test_table_order import NAMES, PROTOCOLS, Lines, ids_at

KINDS = {
    "each a prefix of the next, the first of no byte": lambda number: bytes(number),
    "the last byte alone": lambda number: b"customer-" + number.to_bytes(2, "big"),
    "the first byte alone": lambda number: number.to_bytes(2, "little") + b"-customer",
    "a hundred thousand bytes": lambda number: bytes(100_000) + number.to_bytes(2, "big"),
    "no text": lambda number: b"\xff\xfe\x00" + number.to_bytes(4, "little"),
}
EDGES = [0, 1, 2, 3, *(power + step for power in (4, 8, 16, 32, 64, 128, 256) for step in (-1, 0, 1))]
EXAMPLES = pytest.mark.parametrize("examples", [2, pytest.param(40, marks=pytest.mark.long)])
SIZES = st.sampled_from(EDGES)


def overlap(tables):
    """Count the common ids. Return what both sides learnt."""
    lines = Lines(NAMES[:2])
    return lines.sent, in_threads(
        lambda: overlap_permuting_side(tables["bank"], lines["bank", "shop"], rng=RNG, terms=OverlapTerms()),
        lambda: overlap_comparing_side(tables["shop"], lines["shop", "bank"], rng=RNG, terms=OverlapTerms()),
    )


@st.composite
def lists_of_ids(draw):
    """Make one list, and lists of each party with a common part, of one kind of ids, in any order."""
    spell = KINDS[draw(st.sampled_from(list(KINDS)))]
    common, *own = (draw(SIZES) for _ in range(1 + len(NAMES)))
    ends = np.cumsum([common, *own]).tolist()
    shuffled = np.random.default_rng(draw(st.integers(0, 99)))
    tables = {}
    for name, (start, end) in zip(NAMES, pairwise(ends), strict=True):
        numbers = [*range(common), *range(start, end)]
        tables[name] = [spell(number) for number in shuffled.permutation(numbers).tolist()] if numbers else []
    return tables


def joined(tables, count, *, unites):
    """Return the ids that all of the first parties have, or that any has."""
    sets = [set(tables[name]) for name in NAMES[:count]]
    return set.union(*sets) if unites else set.intersection(*sets)


def for_lists(examples, check):
    settings(max_examples=examples, deadline=None)(given(tables=lists_of_ids())(check))()


@EXAMPLES
@pytest.mark.parametrize("protocol", short_lane_of(PROTOCOLS, 5))
def test_an_alignment_is_the_join_of_sets(protocol, examples):
    def check(tables):
        _, found = PROTOCOLS[protocol](tables)
        parties = NAMES[: len(found)]
        if not joined(tables, len(found), unites=False):  # a side without ids, or nothing to train together
            assert all(isinstance(each, TallystickError) for each in found)
            assert any(isinstance(each, DataError) for each in found)
            return
        assert all(isinstance(each, Alignment) for each in found), found
        at_position = ids_at(tables, found)
        known = [{each for each in ids if each is not None} for ids in zip(*at_position, strict=True)]
        assert all(len(ids) <= 1 for ids in known), "a position is of one id, whoever has it, or of a made-up one"
        expected = joined(tables, len(found), unites="union" in protocol)
        assert sorted(id for ids in known for id in ids) == sorted(expected)
        for name, ids in zip(parties, at_position, strict=True):
            assert {each for each in ids if each is not None} == expected & set(tables[name])

    for_lists(examples, check)


@EXAMPLES
def test_a_count_of_common_ids_is_that_of_sets(examples):
    def check(tables):
        _, found = overlap(tables)
        if not (tables["bank"] and tables["shop"]):
            assert all(isinstance(each, TallystickError) for each in found)
            return
        common = len(joined(tables, 2, unites=False))
        assert [each.counts for each in found] == [(common,), (common,)], found

    for_lists(examples, check)
