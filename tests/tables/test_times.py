"""Times that order rows: text is read as dates or refused, and never compared as text."""

import datetime
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lanes import short_lane_of

from tallystick.config.party import PartyFile, RepeatsConfig, parse_party
from tallystick.config.sections import SplitConfig
from tallystick.errors import ConfigError, DataError
from tallystick.monitoring.monitor import period_names
from tallystick.tables.encoder import Encoder
from tallystick.tables.keys import latest_last
from tallystick.tables.profile import profile
from tallystick.tables.split import parts_of_other_times, split_by_time
from tallystick.tables.table import read_party_table
from tallystick.tables.times import FORMATS, likely_formats, ordered_times, read_times, with_dates

MOMENTS = [datetime.datetime(1995, 1, 3, 8, 5, 9) + datetime.timedelta(days=97 * step, hours=7 * step) for step in range(40)]


@pytest.mark.parametrize("part", short_lane_of(range(3), 1))
def test_the_way_of_writing_dates_that_check_proposes_can_be_written_and_reads_them(tmp_path: Path, part: int) -> None:
    """Make a table with a column for each third format. A column has up to two proposals; all first ones are tried together."""
    written = {f"x{number}": words for number, words in enumerate(FORMATS[part::3])}
    moments = {
        name: [each.replace(second=each.second if "%S" in words else 0) for each in MOMENTS] for name, words in written.items()
    }
    wanted = {
        name: moments[name]
        if "%M" in words
        else [each.date().replace(day=each.day if re.search("%[dj]", words) else 1) for each in MOMENTS]
        for name, words in written.items()
    }
    texts = {name: [each.strftime(words) for each in moments[name]] for name, words in written.items()}
    pl.DataFrame({"id": range(40), **texts}).write_csv(tmp_path / "t.csv")

    def party(**changes: object) -> PartyFile:
        return parse_party({"party": "a", "table": {"path": "t.csv"}, "keys": {"id": "id"}, **changes}, folder=tmp_path)

    frame = read_party_table(party())
    warnings = profile(frame, party()).warnings
    proposals: list[dict[str, str]] = [{}, {}]
    for name, words in written.items():
        if frame.schema[name].is_temporal():  # ISO 8601, which needs no words
            assert frame.get_column(name).to_list() == wanted[name]
            continue
        (line,) = [each for each in warnings if "in the party file" in each and f"dates: {{{name}:" in each]
        assert ("1970 to 2069" in line) == ("%y" in words)
        for ways, proposed in zip(proposals, re.findall(r"`(dates: \{.*?\})`", line), strict=False):
            ways |= yaml.safe_load(proposed)["dates"]
    assert len(proposals[0]) > 30
    for ways in proposals:
        later = read_party_table(party(dates=ways))
        for name in ways:
            assert later.get_column(name).to_list() == wanted[name], ways[name]


def test_a_month_of_a_year_is_its_first_day() -> None:
    months = pl.Series([f"2021-{month:02}" for month in range(1, 13)])
    assert likely_formats(months) == ["%Y-%m"]
    assert read_times(months, "%Y-%m").to_list() == [datetime.date(2021, month, 1) for month in range(1, 13)]
    assert read_times(pl.Series(["2021-13", "21-01", "2021-01-01"]), "%Y-%m").null_count() == 3
    assert likely_formats(pl.Series(["2021-001", "2021-099"])) == ["%Y-%j"]


@pytest.mark.parametrize("words", ["%d.%m", "%m/%Y %H:%M", "%Y-%d", "%Y", "%d.%m.%Y %z", "%d.%m.%Y %:z", "%d %b", "day"])
def test_a_way_of_writing_dates_needs_a_day_a_month_and_a_year(words: str) -> None:
    with pytest.raises(ConfigError, match=r"dates\.x = .*: must have a year"):
        parse_party({"party": "a", "dates": {"x": words}}, folder=Path())


@pytest.mark.parametrize(
    "words",
    [
        *("%d.%m.%Y %H", "%d.%m.%Y %I:%M", "%d.%m.%Y %H:%M %p", "%d.%m.%Y %M:%S", "%d.%m.%Y %k:%M", "%d.%m.%Y %R", "%d.%m.%Y %r"),
        *("%d.%m.%Y %H:%M:%S.%f", "%d.%m.%Y%.f", "%d.%m.%Y %Q", "%d.%m.%Y %C"),
    ],
)
def test_a_way_of_writing_times_is_refused_that_would_lose_a_part_of_them(words: str) -> None:
    with pytest.raises(ConfigError, match=r"dates\.x = .*: must write the time of a day as %H:%M"):
        parse_party({"party": "a", "dates": {"x": words}}, folder=Path())


def test_a_fraction_of_a_second_is_read() -> None:
    words = "%d.%m.%Y %H:%M:%S%.f"
    parse_party({"party": "a", "dates": {"x": words}}, folder=Path())
    read = with_dates(pl.DataFrame({"x": ["01.02.2024 03:04:05.25"]}), {"x": words})
    assert read.get_column("x").to_list() == [datetime.datetime(2024, 2, 1, 3, 4, 5, 250_000)]


def test_years_of_two_digits_are_those_that_the_line_names() -> None:
    text = pl.Series([f"01.02.{year:02}" for year in range(100)])
    years = read_times(text, "%d.%m.%y").dt.year()
    assert (years.min(), years.max()) == (1970, 2069)


def test_a_word_for_a_missing_date_is_named_where_the_error_says(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x\n1,01.02.2024\n2,00.00.0000\n")
    party = {"party": "a", "table": {"path": "t.csv"}, "keys": {"id": "id"}, "dates": {"x": "%d.%m.%Y"}}
    with pytest.raises(DataError, match=r"1 \(row 1, counted from 0\) rows .* name their words under table\.missing_in"):
        read_party_table(parse_party(party, folder=tmp_path))
    party["table"] = {"path": "t.csv", "missing_in": {"x": ["00.00.0000"]}}
    read = read_party_table(parse_party(party, folder=tmp_path)).get_column("x")
    assert read.to_list() == [datetime.date(2024, 2, 1), None]


STAMPS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 30))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))


@given(st.lists(STAMPS, min_size=1), st.booleans())
def test_iso_text_is_ordered_as_pythons_times(stamps: list[datetime.datetime], spaced: bool) -> None:
    text = [each.isoformat(" " if spaced else "T") for each in stamps]
    assert ordered_times(pl.Series("t", text), use="time").to_list() == stamps


@given(st.lists(st.tuples(STAMPS, ZONES), min_size=1))
def test_zones_are_moved_to_one(stamps: list[tuple[datetime.datetime, datetime.timezone]]) -> None:
    inner = [(stamp, zone) for stamp, zone in stamps if 2 < stamp.year < 9998]
    text = [stamp.replace(tzinfo=zone).isoformat() for stamp, zone in inner]
    expected = [stamp - (zone.utcoffset(None) or datetime.timedelta()) for stamp, zone in inner]
    assert ordered_times(pl.Series("t", text, dtype=pl.String), use="time").to_list() == expected


@given(st.lists(st.dates(datetime.date(1, 1, 1)), min_size=1))
def test_dates_are_midnights(days: list[datetime.date]) -> None:
    ordered = ordered_times(pl.Series("t", [day.isoformat() for day in days]), use="time")
    assert ordered.to_list() == [datetime.datetime.combine(day, datetime.time()) for day in days]


UNORDERED = {
    "day first": ["31.12.2023", "05.03.2024", "01.02.2024", "28.02.2020"],
    "month first": ["12/31/2023", "03/05/2024", "02/01/2024", "02/28/2020"],
    "words": ["5 March 2024", "1 February 2024", "28 February 2020", "31 December 2023"],
    "no such day": ["2023-02-30", "2024-01-01", "2024-01-02", "2024-01-03"],
    "some with a zone": ["2024-01-01T00:00Z", "2024-01-02T00:00", "2024-01-03T00:00", "2024-01-04T00:00"],
    "weeks": ["2024-W01", "2024-W02", "2024-W03", "2024-W10"],
}


@pytest.mark.parametrize("text", UNORDERED.values(), ids=UNORDERED)
@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
def test_whatever_orders_by_time_refuses_other_text(text: list[str], kind: type[pl.DataType]) -> None:
    times = pl.Series("t", text, dtype=kind)
    frame = pl.DataFrame({"k": [1, 1, 2, 2], "t": times})
    rows = pl.DataFrame({"key": ["1", "1", "2", "2"], "row": [0, 1, 2, 3]})
    parts = split_by_time(pl.Series("t", [1, 2, 3, 4]), SplitConfig(validation=0.25, test=0.25))
    for order in (
        lambda: split_by_time(times, SplitConfig()),
        lambda: parts_of_other_times(times, parts[:2]),
        lambda: latest_last(frame, rows, RepeatsConfig(latest="t")),
        lambda: period_names(times, "month"),
    ):
        with pytest.raises(DataError, match="column 't'"):
            order()


def test_the_latest_row_of_a_key_is_the_latest_in_time() -> None:
    frame = pl.DataFrame({"t": ["2022-12-31", "2024-03-05T10:00", "2024-02-01", "2020-02-28"]})
    rows = pl.DataFrame({"key": ["1", "1", "2", "2"], "row": [0, 1, 2, 3]})
    ordered = latest_last(frame, rows, RepeatsConfig(latest="t"))
    assert ordered.unique("key", keep="last").sort("key").get_column("row").to_list() == [1, 2]


@pytest.mark.parametrize("kind", [pl.List(pl.Int64), pl.Binary, pl.Boolean])
def test_types_without_a_time_are_refused(kind: pl.DataType) -> None:
    with pytest.raises(DataError, match="time column 't' has type"):
        ordered_times(pl.Series("t", [], dtype=kind), use="time")


@pytest.mark.parametrize("cast", ["DATE", "TIMESTAMP", "TIMESTAMPTZ"])
@pytest.mark.parametrize("beyond", ["infinity", "-infinity", "20240-01-01", "0044-03-15 (BC)"])
@pytest.mark.parametrize("use", ["numeric", "categorical"])
def test_times_that_no_calendar_here_holds_are_refused_by_name(tmp_path, cast, beyond, use):
    """Valid until infinity: 5,881,580 years in a column would hide its other cells, and Python has no such date."""
    cells = f"CASE WHEN i = 3 THEN '{beyond}' ELSE '2024-01-0' || (i % 3 + 1) END::{cast}"
    values = {
        "party": "a",
        "table": {"query": f"SELECT i AS id, {cells} AS until FROM range(9) t(i)"},
        "keys": {"id": "id"},
        "features": {use: ["until"]},
    }
    party = parse_party(values, folder=tmp_path)
    frame = read_party_table(party)
    with pytest.raises(DataError, match=r"column 'until' has times beyond the years 1 to 9999, .* in 1 \(row 3"):
        Encoder.of_party(frame, party, np.arange(9), numbers="plain")
    looked_at = profile(frame, party)
    assert [line for line in looked_at.warnings if "has 1 time beyond" in line]
    assert looked_at.columns[1].maximum < "2025"


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("%d/%m/%Y", ["01/02/2021", "31/12/20"]),
        ("%d/%m/%y", ["31/12/20", "01/02/2021"]),
        ("%d%m%Y", [31122020, 1012021]),
        ("%d%m%Y", ["31122020", "1012021"]),
        ("%d-%b-%Y %H:%M", ["1-Jan-2021 10:00", "1-Jan-21 10:00"]),
    ],
)
def test_a_year_of_other_digits_than_its_format_has_is_refused_by_its_row(words, cells):
    """A year 20 under %Y is no year 0020, and 1012021 has lost its leading zero."""
    with pytest.raises(DataError, match=r"dates\.born = .*: cells have another format in 1 \(row 1, counted from 0\) rows"):
        with_dates(pl.DataFrame({"born": cells}), {"born": words})
