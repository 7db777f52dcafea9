"""Sides that serve and meet again: what one session tells beside the one before it."""

import pytest
from sides import PARTIES, Sides
from tiny import tables

GIVEN = tables(PARTIES, rows=160)


def kinds(sides, step):
    return [kind for kind, _ in sides.heard[step][1]]


@pytest.mark.parametrize("reordered", PARTIES)
def test_sides_that_meet_again_see_nothing_of_a_table_that_is_only_ordered_otherwise(reordered, tmp_path, monkeypatch):
    """A table that is sorted by another column has the same keys: the alignment of before is taken up, as with none changed."""
    sides = Sides(tmp_path, monkeypatch, GIVEN)
    sides.tables(GIVEN)
    assert sides.run() is None
    assert sides.serve() is None
    assert "Size" in kinds(sides, 1)  # aligned
    assert sides.serve(keeps=True) is None
    embedded = next(answer for answer in sides.told if answer[0] == "RowAnswer")
    sides.tables({**GIVEN, reordered: GIVEN[reordered].sort("x")})
    assert sides.serve(keeps=True) is None
    (_, same), (_, after) = sides.heard[2:]
    assert same == after
    assert embedded in sides.told  # the same rows stand at all positions
    sides.tables({**GIVEN, reordered: GIVEN[reordered][1:]})
    assert sides.serve(keeps=True) is None
    assert "Size" in kinds(sides, 4)
