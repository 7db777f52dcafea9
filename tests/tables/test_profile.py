"""The profile that a party is shown of its own table."""

import json
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import DataError
from tallystick.tables.profile import profile, samples_of
from tallystick.tables.times import with_dates

FRAME = pl.DataFrame(
    {
        "id": ["a", "A ", "b", None, "c", "d"],
        "x": [1.0, None, 3.0, float("nan"), float("inf"), 2.0],
        "name": ["p", "q", "r", "s", "t", "u"],
        "leak": [10, 20, 20, 10, 10, 20],
        "fixed": ["z"] * 6,
        "empty": pl.Series([None] * 6, dtype=pl.Float64),
        "y": [0, 1, 1, 0, 0, 1],
    }
)
CONTRACT = parse_contract(
    {
        "name": "job",
        "parties": {"p": {"role": "label"}, "q": {"role": "feature"}},
        "alignment": {"keys": [{"name": "k", "normalise": ["trim", "lower"]}]},
    }
)


def party(**more: Any) -> Any:
    return parse_party({"party": "p", "table": {"path": "t.csv"}, "keys": {"k": "id"}, "label": "y"} | more, folder=Path())


def test_counts_types_and_balance() -> None:
    found = profile(FRAME, party(), CONTRACT)
    assert (found.rows, found.keys.null_rows, found.keys.duplicated_keys, found.keys.used) == (6, 1, 1, 4)
    assert profile(FRAME, party()).keys.duplicated_keys == 0, "without a contract nothing is normalised"
    columns = {column.name: column for column in found.columns}
    assert {name: column.use for name, column in columns.items()} == {
        "id": "key",
        "x": "numeric",
        "name": "categorical",
        "leak": "numeric",
        "fixed": "categorical",
        "empty": "numeric",
        "y": "label",
    }
    assert columns["x"].missing_share == pytest.approx(2 / 6)
    assert (columns["leak"].minimum, columns["leak"].maximum, columns["leak"].distinct) == ("10", "20", 2)
    assert found.label_balance == {"0": 0.5, "1": 0.5}
    assert found.positive_class == "1"
    assert json.loads(json.dumps(found.to_dict()))["keys"]["rows"] == 6


def test_the_positive_class_of_words_is_the_one_that_the_scores_are_of() -> None:
    words = FRAME.with_columns(y=pl.Series(["nein", "ja", "ja", "nein", "nein", "ja"]))
    assert profile(words, party(), CONTRACT).positive_class == "nein"
    assert profile(words, party()).positive_class is None, "without a contract the target is unknown"
    assert profile(FRAME.with_columns(y=pl.Series(range(6))), party(), CONTRACT).positive_class is None


def test_warnings_name_what_looks_wrong() -> None:
    warnings = profile(FRAME, party(), CONTRACT).warnings
    assert warnings == (
        "1 of 6 rows have no key",
        "1 keys occur in more than one row; 1 of 6 rows are left out: the first row of a key counts "
        "(alignment.duplicates = first); agree on alignment.duplicates: all to use every row",
        "column 'x' has 1 infinite numbers; make them null or clip them",
        "column 'name' has a different category in every row; it identifies rows and cannot help",
        "column 'leak' all but equals the label; is it known before the label is? (leakage)",
        "column 'fixed' is constant; it will be left out",
        "column 'empty' is missing in 100% of rows",
        "column 'empty' is constant; it will be left out",
    )


def test_a_clean_table_has_no_warnings() -> None:
    rows = 60
    frame = pl.DataFrame(
        {
            "id": range(rows),
            "x": [row % 7 for row in range(rows)],
            "c": ["ab"[row % 2] for row in range(rows)],
            "y": [row % 3 == 0 for row in range(rows)],
        }
    )
    assert profile(frame, party(), CONTRACT).warnings == ()


def test_a_feature_party_has_no_balance() -> None:
    found = profile(FRAME.drop("y"), party(label=None), CONTRACT)
    assert found.label_balance is None
    assert not any("leakage" in warning for warning in found.warnings)


def test_a_regression_label_has_no_balance_but_shows_leaks() -> None:
    frame = pl.DataFrame({"id": range(50), "twice": [2.0 * row for row in range(50)], "y": [row + 0.5 for row in range(50)]})
    found = profile(frame, party(), CONTRACT)
    assert found.label_balance is None
    assert any("'twice' all but equals the label" in warning for warning in found.warnings)


def test_unusable_table() -> None:
    with pytest.raises(DataError, match="label column 'why' is not in the table"):
        profile(FRAME, party(label="why"), CONTRACT)


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ([1_067, *range(10_115, 99_000, 9_000)], 1 / 11),  # codes of five digits, one of which began with a zero
        (["1067", *map(str, range(10_115, 99_000, 9_000))], 1 / 11),
        (["01067", *map(str, range(10_115, 99_000, 9_000))], 0.0),
        (list(range(1, 2_000)), 0.0),  # row numbers
        (list(range(10_115, 99_000, 9_000)), 0.0),
        ([7, 45, 123, 77_777], 0.0),  # no length that most have
        (["1067", "x10115", "20115"], 0.0),
        (list(range(100, 25_000, 700)), 0.0),  # whole numbers up to 25,000
        ([1_067, 10**17 + 1, *range(10**17, 10**18, 10**17)], 1 / 11),
    ],
)
def test_keys_that_may_have_lost_zeros_in_front(keys: list[Any], share: float) -> None:
    frame = pl.DataFrame({"id": keys, "x": range(len(keys)), "y": [row % 3 == 0 for row in range(len(keys))]})
    found = [warning for warning in profile(frame, party(), CONTRACT).warnings if "fewer digits" in warning]
    assert [warning.split(" of the values")[0] for warning in found] == ([f"key column 'id': {share:.1%}"] if share else [])


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (["31.12.2020", "1.2.20", None], True),
        (["31/12/2020", "01/02/2021", "x"], False),
        (["31/12/2020", "01/02/2021", "3/4/22"], True),
        (["1.2.3.4", "31.12.2020", "1.1.20"], False),
        ([None, "a", "b"], False),
    ],
)
def test_dates_that_are_taken_as_categories(values: list[str | None], warned: bool) -> None:
    frame = pl.DataFrame({"id": ["a", "b", "c"], "born": values, "y": [0, 1, 1]})
    warnings = profile(frame, party(), CONTRACT).warnings
    assert any("'born' holds dates such as 31.12.2020" in warning for warning in warnings) == warned


def test_bounds_are_short_and_their_whole_part_is_exact() -> None:
    frame = FRAME.with_columns(
        x=pl.Series([11.0421688043128, 2.5, 3.0, 20240131.25, 4.0, 5.0]), leak=pl.Series([-1 / 3] * 5 + [0.5])
    )
    columns = {column.name: column for column in profile(frame, party(), CONTRACT).columns}
    assert (columns["x"].minimum, columns["x"].maximum) == ("2.5", "20240131.25")
    assert (columns["leak"].minimum, columns["leak"].maximum) == ("-0.333333", "0.5")


def test_samples_of_lists_and_structs_are_shown_too() -> None:
    lists = pl.Series("x", [[1, 2], [1, 2], [], None, [3]])
    assert samples_of(lists) == ("[1, 2]", "[]", "[3]")
    assert samples_of(pl.Series("x", [{"a": 1}, {"a": None}])) == ("{'a': 1}", "{'a': None}")
    assert samples_of(pl.Series("x", [None], dtype=pl.List(pl.Int64))) == ()


def test_samples_that_one_would_not_see_are_in_quotes() -> None:
    assert samples_of(pl.Series("x", ["rainy\nwind", "c ", "a b"])) == (r"'rainy\nwind'", "'c '", "a b")


@pytest.mark.parametrize("number", [-999, 9999, -(2**31)])
@pytest.mark.parametrize("kind", [pl.Int64, pl.Float32, pl.Decimal(20, 2)])
def test_a_number_that_may_stand_for_a_missing_cell_is_asked_about(number: int, kind: Any) -> None:
    """It is far from all others, in several rows. If others are near, it is one of them."""

    def told(cells: list[int | None]) -> list[str]:
        frame = pl.DataFrame({"id": range(len(cells)), "y": [row % 2 for row in range(len(cells))]})
        frame = frame.with_columns(pl.Series("age", cells).cast(kind))
        return [line for line in profile(frame, party(features=None), CONTRACT).warnings if "means a missing cell" in line]

    numbers = [*range(40), None]
    (line,) = told([*numbers, *[number] * 5])
    assert line.startswith(f"column 'age' is {number} in 5 rows, and 0.0 to 39.0 in all others")
    assert line.endswith(f"table.missing_in: {{age: ['{number}']}}")
    assert told([*numbers, number]) == []
    assert told([*numbers, *[number] * 5, number // 2]) == []
    assert told([0, 1, number, number, number]) == []
    (line,) = told([*[1, 2, 3, None] * 10, *[number] * 4])
    assert line.startswith(f"column 'age' is {number} in 4 rows, and 1.0 to 3.0 in all others")
    assert told([*[1] * 30, *[number] * 4]) == []
    assert told([None]) == []


DAYS = ["20240131", "20240201", "19991224", "20230705"]
DAYS_FIRST = ["31012024", "28022024", "24121999", "15072023"]


@pytest.mark.parametrize(
    ("cells", "mends"),
    [
        (DAYS, ['{since: "%Y%m%d"}']),
        ([*DAYS, None, "99991231"], ['{since: "%Y%m%d"}']),
        (DAYS_FIRST, ['{since: "%d%m%Y"}']),
        (["01022024", "02032024"], ['{since: "%d%m%Y"}', '{since: "%m%d%Y"}']),
        (["20240131120000", "20240201083005"], ['{since: "%Y%m%d%H%M%S"}']),
        ([f"{year}{month:02}" for year in (1987, 1999) for month in range(1, 13)], ['{since: "%Y%m"}']),
        ([f"9{day % 10}12{day}" for day in range(10, 32)], ['{since: "%y%m%d"}']),
        ([f"{day}1299" for day in range(10, 32)], ['{since: "%d%m%y"}']),
        ([f"2024{day}" for day in range(101, 130)], ['{since: "%Y%j"}']),
        (["202401", "202402"], []),  # too few to say
        (["202401311200", "202402010830"], ['{since: "%Y%m%d%H%M"}']),
        ([*DAYS, "20240132"], []),  # no such day
        ([*DAYS, "7"], []),
        (["20240131", "20240131"], []),  # a constant
        (["12345678", "20240131"], []),
        (["99991231", "99991230"], []),
        ([None], []),
    ],
)
@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64, pl.Decimal(20, 0), pl.String])
def test_dates_of_digits_alone_are_asked_about_and_the_mend_reads_them(cells: list[Any], mends: list[str], kind: Any) -> None:
    """Numbers have no leading zeros, so days below ten lack a digit if the day comes first."""
    values = pl.Series("since", cells, dtype=pl.String)
    if kind != pl.String:
        values = values.cast(pl.Int64).cast(kind)
        mends = [] if cells[0] == "01022024" else mends
    frame = pl.DataFrame({"id": range(len(cells)), "y": [row % 2 for row in range(len(cells))]}).with_columns(values)
    told = [
        line for line in profile(frame, party(), CONTRACT).warnings if "'since'" in line and "dates without separators" in line
    ]
    assert len(told) == bool(mends)
    for mend in mends:
        assert mend in told[0]
        words = mend.partition('"')[2].rstrip('"}')
        dates = with_dates(frame, {"since": words}).get_column("since")
        assert dates.dtype.is_temporal()
        assert dates.null_count() == values.null_count()
    if mends:
        listed = {"numeric": ["since"]} if kind != pl.String else {"categorical": ["since"]}
        lines = profile(frame, party(features=listed), CONTRACT).warnings
        assert not [line for line in lines if "dates without separators" in line]
        timed = profile(frame, party(time="since"), CONTRACT).warnings
        assert [line for line in timed if "dates without separators" in line]


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([*range(10**6, 10**6 + 40), *[2**63 - 1] * 3], str(2**63 - 1)),
        ([*range(40), *[10**16 - 1] * 3], str(10**16 - 1)),
        ([*map(float, range(40)), *[-3.4028235e38] * 3], "-3.4028235e+38"),
        ([*(date(2024, 1, 1) + timedelta(days) for days in range(40)), *[date(9999, 12, 31)] * 3], "9999-12-31"),
        ([*(date(2024, 1, 1) + timedelta(days) for days in range(40)), *[date(1900, 1, 1)] * 3], "1900-01-01"),
        ([*(datetime(2024, 1, 1) + timedelta(days) for days in range(40)), *[datetime(1970, 1, 1)] * 3], "1970-01-01 00:00:00"),
        ([*(date(1890, 1, 1) + timedelta(1000 * days) for days in range(40)), *[date(1900, 1, 1)] * 3], None),
    ],
)
def test_the_largest_numbers_and_dates_that_mean_none_are_asked_about(cells: list[Any], shown: str | None) -> None:
    frame = pl.DataFrame({"id": range(len(cells)), "age": cells, "y": [row % 2 for row in range(len(cells))]})
    told = [line for line in profile(frame, party(features=None), CONTRACT).warnings if "means a missing cell" in line]
    assert len(told) == (shown is not None)
    if shown is not None:
        assert told[0].startswith(f"column 'age' is {shown} in 3 rows")
        assert told[0].endswith(f"table.missing_in: {{age: ['{shown}']}}")


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ([date(24, 3, 1), date(25, 3, 2), date(2024, 1, 1)], "has 2 times before the year 1000"),
        ([datetime(24, 3, 1, 12), datetime(2024, 1, 1), None], "has 1 time before the year 1000"),
        ([date(1000, 1, 1), date(2024, 1, 1), None], ""),
    ],
)
def test_years_of_two_digits_that_a_table_has_as_dates_are_told_of(days: list[Any], said: str) -> None:
    """A program wrote 0024-03-01 for 1 March 2024."""
    frame = pl.DataFrame({"id": ["a", "b", "c"], "born": days, "y": [0, 1, 1]})
    lines = [line for line in profile(frame, party(), CONTRACT).warnings if "before the year" in line]
    assert len(lines) == bool(said)
    assert all(said in line for line in lines)


@pytest.mark.parametrize(
    ("words", "cells", "is_said"),
    [
        ("%d.%m.%y", ["03.04.40", "05.06.71"], True),
        ("%d.%m.%y", ["03.04.40", "05.06.62"], True),
        ("%d.%m.%y", ["03.04.05", "05.06.71"], False),
        ("%d.%m.%y", ["03.04.23", "05.06.24"], False),
        ("%d.%m.%Y", ["03.04.1940", "05.06.1971"], False),
    ],
)
def test_where_years_of_two_digits_look_off_by_a_century_the_range_is_said(words: str, cells: list[str], is_said: bool) -> None:
    frame = with_dates(pl.DataFrame({"id": ["a", "b"], "y": [0, 1], "born": cells}), {"born": words})
    said = [line for line in profile(frame, party(dates={"born": words})).warnings if "1970 to 2069" in line]
    assert ["2040-04-03" in line for line in said] == [True] * is_said
