"""Times in another unit, calendar or order than they are read in are said, whichever reader brings them, now or later."""

from datetime import date, datetime, timedelta
from itertools import combinations

import numpy as np
import polars as pl
import pytest

from tallystick.config.party import parse_party
from tallystick.tables.doubtful_times import digits_warning, either_way, times_warnings
from tallystick.tables.encoder import Encoder
from tallystick.tables.extension import extended
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.profile import profile
from tallystick.tables.table import read_party_table, read_rows

SECONDS = [1_700_000_000 + 86_400 * number for number in range(40)]
DAYS = [date(2024, 1, 1) + timedelta(days=number) for number in range(90)]
MONTHS = [f"{month:02}.{year}" for year in (2018, 2019, 2020) for month in range(1, 13)]


def turned(day):
    """Read a day as a program does that takes the month first where it can."""
    return date(day.year, day.day, day.month) if day.day <= 12 else day


def by_years(days, years):
    return [date(day.year + years, day.month, min(day.day, 28)) for day in days]


DIGITS_OF_UNITS = {"seconds": 10, "milliseconds": 13, "microseconds": 16, "nanoseconds": 19}
UNITS, ERA, TURNED = "are in several units", "look like those of another calendar", "look turned round in some rows"
COLUMNS = {
    "seconds beside milliseconds": ([each * 1000 ** (place % 3 == 0) for place, each in enumerate(SECONDS)], UNITS),
    "fractions of seconds": ([each * 1000 ** (place % 3 == 0) + 0.25 for place, each in enumerate(SECONDS)], UNITS),
    "microseconds in one row": ([*SECONDS[1:], SECONDS[0] * 10**6], UNITS),
    "seconds taken for milliseconds": (
        [datetime(1970, 1, 20, 16, 13, 20), *(datetime(2023, 1, 1) + timedelta(days=number) for number in range(40))],
        UNITS,
    ),
    "seconds": (SECONDS, None),
    "seconds, and 0 for none": ([0, *SECONDS], None),
    "numbers of all sizes": ([7**number for number in range(20)], None),
    "births": ([date(1970, 1, 20), *(date(1950, 1, 1) + timedelta(days=700 * number) for number in range(40))], None),
    "Thai": (by_years(DAYS, 543), ERA),
    "Thai in some rows": ([*DAYS, *by_years(DAYS[:5], 543)], ERA),
    "Islamic": (by_years(DAYS, -579), ERA),
    "Thai years beside others": ([*range(2000, 2024), *range(2550, 2567)], ERA),
    "a date for none": ([*DAYS, date(2999, 12, 31), date(9999, 12, 31)], None),
    "history": ([date(year, 5, 6) for year in range(1300, 2000, 20)], None),
    "numbers near years": (list(range(1300, 2600, 30)), None),
    "turned round": ([turned(day) for day in DAYS], TURNED),
    "days": (DAYS, None),
    "firsts of months beside days": ([*DAYS, *(date(2024, month, 1) for month in range(4, 13))], None),
    "days of other years": ([*DAYS, *(date(2010 + number % 9, number % 12 + 1, number % 28 + 1) for number in range(60))], None),
    "months as fractions": ([float(month) for month in MONTHS], "look like months such as 3.2019"),
    "years and months": ([2018 + month / 100 for month in range(1, 13)], "look like months such as 3.2019"),
    "prices": ([1 + 0.2 * number for number in range(50)], None),
}


def party_of(folder, **keys):
    table = keys.pop("table", {"path": "t.csv"})
    return parse_party({"party": "bank", "table": table, "keys": {"id": "id"}, **keys}, folder=folder)


def frame_of(cells):
    return pl.DataFrame({"id": [f"k{number}" for number in range(len(cells))], "x": cells})


@pytest.mark.parametrize("reader", ["csv", "parquet", "duckdb", "pandas"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_what_may_be_another_time_is_said_in_check_terminal_and_report(kind, reader, tmp_path):
    """The encoder's notes are lines of the terminal and of the report."""
    cells, said = COLUMNS[kind]
    frame = frame_of(cells)
    table = {"path": f"t.{reader}"} if reader in ("csv", "parquet") else {"query": "SELECT * FROM 't.parquet'"}
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")
    party = party_of(tmp_path, table=table)
    read = pl.DataFrame(frame.to_pandas()) if reader == "pandas" else read_party_table(party)
    encoder = Encoder.of_party(read, party, np.arange(len(cells)), numbers="plain")
    for lines in (encoder.notes, profile(read, party).warnings):
        assert [said in line for line in lines if line.startswith("column 'x'") and "different category" not in line] == (
            [True] if said else []
        )


@pytest.mark.parametrize(
    ("trained", "later", "said"),
    [
        (SECONDS, [each * 1000 for each in SECONDS], UNITS),
        (SECONDS, [*SECONDS, SECONDS[0] * 1000], UNITS),
        ([each * 1000 for each in SECONDS], SECONDS, UNITS),
        (SECONDS, [each + 10**7 for each in SECONDS[:10]], None),
        (DAYS, [date(1970, 1, 20), *DAYS], UNITS),
        (DAYS, by_years(DAYS, 543), ERA),
        (DAYS, [turned(day) for day in DAYS], TURNED),
        (DAYS, [date(2025, number % 12 + 1, number // 12 + 1) for number in range(30)], "no date is beyond the twelfth"),
        (DAYS, [day + timedelta(days=900) for day in DAYS], None),
        (DAYS, DAYS[:10], None),
    ],
)
def test_later_times_in_another_unit_calendar_or_order_are_said_in_scoring_and_retraining(trained, later, said, tmp_path):
    party = party_of(tmp_path)
    encoder = Encoder.of_party(frame_of(trained), party, np.arange(len(trained)), numbers="plain")
    assert later_doubts(frame_of(trained), encoder) == []
    retrained = extended(encoder, frame_of(later), party, np.arange(len(later)))
    for lines in (later_doubts(frame_of(later), encoder), retrained.notes):
        if said is None:
            assert not any(words in line for line in lines for words in (UNITS, ERA, TURNED, "the twelfth"))
        else:
            assert any(said in line for line in lines)


@pytest.mark.parametrize(
    ("cells", "words", "is_said"),
    [
        ([f"{day:02}/{month:02}/2024" for day in (1, 5, 12) for month in (3, 4)], "%d/%m/%Y", True),
        ([f"{day:02}/{month:02}/2024" for day in (1, 5, 12) for month in (3, 4)], "%m/%d/%Y", True),
        ([f"{day:02}/{month:02}/2024" for day in (1, 5, 13) for month in (3, 4)], "%d/%m/%Y", False),
        ([f"{day:02}/{day:02}/2024" for day in range(1, 13)], "%d/%m/%Y", False),
        ([f"{day:02}-Mar-2024" for day in range(1, 13)], "%d-%b-%Y", False),
    ],
)
def test_a_format_that_is_not_the_only_one_of_its_column_is_said(cells, words, is_said, tmp_path):
    frame_of(cells).write_csv(tmp_path / "t.csv")
    party = party_of(tmp_path, dates={"x": words})
    read = read_party_table(party)
    notes = Encoder.of_party(read, party, np.arange(len(cells)), numbers="plain").notes
    for lines in (notes, profile(read, party).warnings):
        assert any(line.startswith(f"dates.x = {words!r}: all cells fit") for line in lines) == is_said


@pytest.mark.parametrize(
    "form", ["{1:02}.{0}", "{0}.{1:02}", "{1:02}/{0}", "{1}/{0}", "{1:02}-{0}", "{1:02}_{0}", "{0}_{1:02}", "{0}M{1:02}"]
)
@pytest.mark.parametrize("count", [6, 30])
def test_months_with_years_are_said_with_the_format_that_reads_them(form, count, tmp_path):
    cells = [form.format(2018 + number // 12, number % 12 + 1) for number in range(count)]
    frame_of(cells).write_csv(tmp_path / "t.csv")
    notes = Encoder.of_party(read_party_table(party_of(tmp_path)), party_of(tmp_path), np.arange(count), numbers="plain").notes
    (mend,) = [note.partition('dates: {x: "')[2].partition('"')[0] for note in notes if "dates: {x:" in note]
    party = party_of(tmp_path, dates={"x": mend})
    days = read_rows(party.table, party, trained=None).get_column("x").to_list()
    assert days == [date(2018 + number // 12, number % 12 + 1, 1) for number in range(count)]


@pytest.mark.parametrize(
    "kind",
    [
        *(pl.Int8, pl.UInt8, pl.Int16, pl.Int32, pl.UInt64, pl.Int128, pl.Float32, pl.Decimal(20, 2), pl.Duration("ms"), pl.Date),
        *(pl.Datetime("ns"), pl.Datetime("us", "Europe/Berlin"), pl.Time, pl.Boolean, pl.String),
    ],
)
@pytest.mark.parametrize("numbers", [[], [None], [1, 0, 1, None]])
def test_columns_of_every_type_are_looked_at(kind, numbers):
    column = pl.Series("x", numbers, dtype=pl.Int64).cast(kind, strict=False)
    assert times_warnings(column) == times_warnings(column, trained=(0.0, 1.0)) == []
    assert digits_warning(column) is None
    assert (either_way(column, "%d/%m/%Y") is None) == (kind != pl.Date or len(numbers) < 2)


@pytest.mark.parametrize(("first", "second"), list(combinations(DIGITS_OF_UNITS, 2)))
def test_the_line_names_the_units_that_the_times_are_in(first, second):
    """An example in another unit than the column's would send people to look for cells that are not there."""
    cells = [each * 10 ** (DIGITS_OF_UNITS[(first, second)[place % 2]] - 10) for place, each in enumerate(SECONDS)]
    (line,) = times_warnings(pl.Series("seen", cells))
    examples = [f"{'17'.ljust(DIGITS_OF_UNITS[unit], '0')} ({unit})" for unit in (first, second)]
    assert f"such as {' beside '.join(examples)}; write" in line
