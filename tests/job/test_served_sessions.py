"""Sides that serve and meet again: what a session discloses beyond the one before it."""

from types import SimpleNamespace

import pytest
from sides import PARTIES, Sides
from tiny import files_of, of_each, tables

from tallystick.errors import PeerError, TallystickError
from tallystick.network.channel import memory_channels
from tallystick.serving.side import ServingSide
from tallystick.watcher import Silent

GIVEN = tables(PARTIES, rows=160)


def kinds(sides, step):
    return [kind for kind, _ in sides.heard[step][1]]


@pytest.mark.parametrize("reordered", PARTIES)
def test_sides_that_meet_again_see_nothing_of_a_table_that_is_only_ordered_otherwise(reordered, tmp_path, monkeypatch):
    """A table sorted by another column has the same keys, so the earlier alignment is used, as if nothing had changed."""
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


def test_a_partner_that_brings_another_list_each_time_is_answered_so_often_a_day(tmp_path, monkeypatch):
    """Sessions are opened again unattended, and each new alignment shows which ids of a list the other side has."""
    sides = Sides(tmp_path, monkeypatch, GIVEN)
    sides.tables(GIVEN)
    assert sides.run() is None
    monkeypatch.setattr("tallystick.serving.side.MOST_ALIGNMENTS", 3)
    now = iter(range(0, 10**9, 1000))
    monkeypatch.setattr("tallystick.serving.side.time", SimpleNamespace(monotonic=lambda: float(next(now))))
    bank = ServingSide.of(*files_of(sides.job, "bank"), table=None, run=None, watcher=Silent())

    def met(frame):
        """Return the outcome of a session with a partner that has these rows now."""
        frame.write_parquet(sides.job.home("shop") / "table.parquet")
        shop = ServingSide.of(*files_of(sides.job, "shop"), table=None, run=None, watcher=Silent())
        ends = dict(zip(PARTIES, memory_channels(*PARTIES, timeout_s=60), strict=True))

        def align(name):
            other = next(each for each in PARTIES if each != name)
            try:
                return (bank if name == "bank" else shop).align({other: ends[name]}, GIVEN["bank"].height)
            except TallystickError as error:
                ends[name].abort("it ended")
                return error

        return of_each(PARTIES, align)["bank"]

    lists = [GIVEN["shop"][first : first + 100] for first in range(6)]
    assert [len(met(frame)) > 0 for frame in lists[:3]] == [True] * 3
    with pytest.raises(PeerError, match="aligned anew 3 times in a day"):
        raise met(lists[3])
    assert len(met(lists[2])) > 0  # the one of before
    now = iter(range(86_400, 10**9))
    assert len(met(lists[4])) > 0
