"""Days and times in JSON become the column's own, in every spelling; other values are refused without showing them."""

import zoneinfo
from datetime import UTC, date, datetime, time

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import FeatureError
from tallystick.scoring.stores.cells import typed_column

BERLIN = pl.Datetime("us", "Europe/Berlin")
MOMENTS = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1))


@given(st.lists(st.none() | st.dates()))
def test_days(days):
    cells = [day and day.isoformat() for day in days]
    assert typed_column("x", cells, pl.Date()).equals(pl.Series("x", days, dtype=pl.Date))


@given(st.lists(st.none() | MOMENTS), st.sampled_from("T "), st.sampled_from(["ms", "us"]))
def test_points_in_time(moments, between, unit):
    cells = [moment and moment.isoformat(sep=between) for moment in moments]
    assert typed_column("x", cells, pl.Datetime(unit)).equals(pl.Series("x", moments, dtype=pl.Datetime(unit)))


@given(MOMENTS)
def test_points_in_time_with_an_offset(moment):
    moment = moment.replace(tzinfo=UTC)
    (found,) = typed_column("x", [moment.isoformat().replace("+00:00", "Z")], BERLIN)
    assert found == moment
    (found,) = typed_column("x", [moment.astimezone(zoneinfo.ZoneInfo("Asia/Kolkata")).isoformat()], BERLIN)
    assert found == moment


def test_a_time_of_day():
    assert typed_column("x", ["09:30:01", None], pl.Time()).to_list() == [time(9, 30, 1), None]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("13.05.2024", pl.Date()),
        ("2024-02-30", pl.Date()),
        (20240513, pl.Date()),
        ("2024-05-13T10:00:00Z", pl.Datetime("us")),
        ("2024-05-13T10:00:00", BERLIN),
        (date(2024, 5, 13).toordinal(), BERLIN),
        ("PT1S", pl.Duration("us")),
        (["2024-05-13"], pl.Date()),
        ("09:30:01+02:00", pl.Time()),
        ("09:30:01Z", pl.Time()),
    ],
)
def test_what_is_no_such_day_is_refused_without_its_value(cell, kind):
    with pytest.raises(FeatureError, match=r"column 'x': a cell is not of the type") as refused:
        typed_column("x", [cell], kind)
    assert str(cell) not in str(refused.value)


def test_a_number_where_text_is_due_is_refused_with_what_to_write() -> None:
    with pytest.raises(FeatureError, match='write it as text, such as "17"'):
        typed_column("id", [17], pl.String())
