"""Later tables are read like the training's: the same encoded values, or a refusal that names the column."""

import random
import re
import string
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tallystick.config.party import FeatureColumns, parse_party
from tallystick.config.table import TableConfig
from tallystick.errors import DataError, FeatureError
from tallystick.tables.column_formats import as_form
from tallystick.tables.doubtful_text import text_warning
from tallystick.tables.encoder import Encoder
from tallystick.tables.extension import extended
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.profile import profile
from tallystick.tables.table import read_party_table, read_rows, read_table


def csv(path: Path, name: str, cells: list[str], *, separator: str = ",") -> Path:
    path.write_text(f"id{separator}{name}\n" + "".join(f"{row}{separator}{cell}\n" for row, cell in enumerate(cells)))
    return path


def party_of(table: Path, **values):
    """Return a party file whose table is this file."""
    return parse_party({"party": "a", "table": {"path": str(table)}, "keys": {"id": "id"}, **values}, folder=table.parent)


def encoded(encoder: Encoder, frame) -> list[list[float]]:
    features = encoder.encode(frame).unpacked()
    return np.concatenate([features.numeric_NF.numpy(), features.categorical_NG.numpy()], axis=1).tolist()


DAYS = [f"2024-01-{day:02}" for day in range(1, 16)]
LATER = {
    "postcodes": (["01234"] * 5 + ["02345"] * 5 + ["K1A"] * 5, ["01234", "02345"], ["01234", "02345"]),
    "codes with E": (["12E4"] * 5 + ["13E4"] * 5 + ["AB12"] * 5, ["12E4", "13E4"], ["12E4", "13E4"]),
    "versions": (["1.10"] * 5 + ["1.1"] * 5 + ["2.0b"] * 5, ["1.10", "1.1"], ["1.10", "1.1"]),
    "midnights": (DAYS, ["2024-01-03 00:00:00", "2024-01-12 00:00:00"], ["2024-01-03", "2024-01-12"]),
    "days of moments": ([f"{day} 12:00" for day in DAYS], ["2024-01-03", "2024-01-12"], ["2024-01-03 00:00", "2024-01-12 00:00"]),
    "moments as text": (
        ["2024-01-01 13:05"] * 5 + ["2024-01-02 13:05"] * 5 + ["never"] * 5,
        ["2024-01-01 13:05"],
        ["2024-01-01 13:05"],
    ),
    "no value": (["1.5", "2.5", "3.5"] * 5, ["", ""], ["", ""]),
}


@pytest.mark.parametrize("kind", LATER)
def test_a_later_file_is_read_as_the_training_file_was(tmp_path, kind):
    trained, cells, same = LATER[kind]
    party = party_of(csv(tmp_path / "train.csv", "x", trained))
    frame = read_party_table(party)
    encoder = Encoder.of_party(frame, party, np.arange(frame.height), numbers="plain")
    later = read_rows(party.table_at(csv(tmp_path / "later.csv", "x", cells)), party, trained=encoder)
    whole = encoded(encoder, frame)
    wanted = [whole[trained.index(cell)] for cell in same] if set(same) <= set(trained) else None
    if wanted is None:
        alike = csv(tmp_path / "alike.csv", "x", [*same, *trained])
        wanted = encoded(encoder, read_rows(party.table_at(alike), party, trained=encoder))[: len(same)]
    assert encoded(encoder, later) == wanted
    encoder.check(later)


def test_a_later_file_keeps_the_decimal_sign_of_the_training(tmp_path):
    amounts = ["1.250,50", "900,00", "2.500,00", "15.000,00", "750,25"] * 3
    party = party_of(csv(tmp_path / "train.csv", "x", amounts, separator=";"))
    frame = read_party_table(party)
    encoder = Encoder.of_party(frame, party, np.arange(frame.height), numbers="plain")
    assert encoder.decimal == ","
    later = csv(tmp_path / "later.csv", "x", ["1.250", "2.500"], separator=";")
    assert read_rows(party.table_at(later), party, trained=encoder).get_column("x").to_list() == [1250, 2500]


NOON, ZONED = datetime(2024, 1, 3, 12), datetime(2024, 1, 3, 12, tzinfo=UTC)
REFUSED = {
    "a time of day where days were": (
        [date(2024, 1, 1), date(2024, 1, 2)],
        [NOON, NOON],
        "trained on dates, and this table has time stamps with a time of day",
    ),
    "a zone where none was": (
        [datetime(2024, 1, 1, 1), NOON],
        [ZONED, ZONED],
        "trained on time stamps without a zone, and this table has time stamps with",
    ),
    "no zone where one was": (
        [ZONED, datetime(2024, 1, 4, tzinfo=UTC)],
        [NOON, NOON],
        "trained on time stamps with a zone, and this table has time stamps without",
    ),
    "a time stamp where a number was": ([1.0, 2.5], [NOON, NOON], "trained on numbers, and this table has time stamps"),
    "a number where a date was": (
        [date(2024, 1, 1), date(2024, 1, 2)],
        [19_000, 19_001],
        "trained on dates, and this table has numbers",
    ),
    "a time of day where a number was": ([1.0, 2.5], [time(1), time(2)], "trained on numbers, and this table has times"),
    "text where a number was": (
        [1.0, 2.5],
        ["1.0", "?"],
        "trained on numbers, and this table has text that is not of this kind in 1 (row 1",
    ),
    "a number where a postcode was": (
        ["01067", "01069"],
        [1067, 1069],
        "trained on text, and this table has numbers, which lose the spelling",
    ),
    "a number where colours were": (["red", "green"], [1, 2], "trained on text, and this table has numbers, which no category"),
    "true and false where yes and no were": (
        ["yes", "no"],
        [True, False],
        "trained on text, and this table has true and false, which no category",
    ),
    "a half where true and false were": ([True, False], [0.5, 1.0], "trained on true and false, and this table has numbers"),
    "two where true and false were": ([True, False], [1, 2], "trained on true and false, and this table has numbers"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", ["score", "check", "start from"])
def test_what_does_not_fit_is_refused_by_name(kind, way):
    trained, cells, words = REFUSED[kind]
    frame, later = pl.DataFrame({"id": [1, 2], "x": trained}), pl.DataFrame({"id": [1, 2], "x": cells})
    party = parse_party(
        {"party": "a", "table": {"path": "x.csv"}, "keys": {"id": "id"}, "encoding": {"min_count": 1}}, folder=Path()
    )
    encoder = Encoder.of_party(frame, party, np.arange(2), numbers="plain")
    tried = {
        "score": encoder.encode,
        "check": encoder.check,
        "start from": lambda table: extended(encoder, table, party, np.arange(2)),
    }
    with pytest.raises(FeatureError, match="column 'x'") as refusal:
        tried[way](later)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("form", "cells", "wanted"),
    [
        ("number", [True, False], [1, 0]),
        ("boolean", [1, 0, None], [True, False, None]),
        ("boolean", [1.0, 0.0, None, float("nan")], [True, False, None, None]),  # of pandas, beside a missing cell
        ("boolean", [Decimal("1.0"), Decimal("0.0")], [True, False]),
        ("boolean", ["True", "FALSE"], [True, False]),
        ("date", [datetime(2024, 1, 3)], [date(2024, 1, 3)]),
        ("date", ["2024-01-03", "2024-01-04 00:00:00", " "], [date(2024, 1, 3), date(2024, 1, 4), None]),
        ("moment", [date(2024, 1, 3)], [datetime(2024, 1, 3)]),
        ("moment", ["2024-01-03T12:00:00.250"], [datetime(2024, 1, 3, 12, 0, 0, 250_000)]),
        ("zoned", ["2024-01-03T12:00+09:00", "2024-01-03 12:00:00Z"], [datetime(2024, 1, 3, 3, tzinfo=UTC), ZONED]),
        ("time", ["12:30", "01:02:03.5"], [time(12, 30), time(1, 2, 3, 500_000)]),
        ("number", ["12345678901", " 2"], [12345678901, 2]),
        ("number", [None, None], [None, None]),
        ("text", [1.0, 2.5, None], ["1", "2.5", None]),
        ("text", [date(2024, 1, 3)], ["2024-01-03"]),
    ],
)
def test_cells_of_another_type_that_say_the_same_are_taken(form, cells, wanted):
    assert as_form(pl.Series("x", cells), form).to_list() == wanted


def test_a_run_that_starts_from_another_reads_days_as_days():
    days = [date(2024, 1, day) for day in range(1, 11)]
    frame = pl.DataFrame({"id": range(10), "since": days})
    party = parse_party({"party": "a", "table": {"path": "x.csv"}, "keys": {"id": "id"}}, folder=Path())
    encoder = Encoder.of_party(frame, party, np.arange(10), numbers="plain")
    later = frame.with_columns(since=pl.col("since").cast(pl.Datetime("us")))
    assert encoded(extended(encoder, later, party, np.arange(10)), later) == encoded(encoder, frame)


@pytest.mark.parametrize(
    "cells", [[f"{n / 8}%" for n in range(40)], [f"€ {n}.50" for n in range(40)], ["<0.01"] * 2 + [f"{n / 8}" for n in range(40)]]
)
def test_text_that_looks_like_numbers_is_said_with_the_mend(tmp_path, cells):
    party = party_of(csv(tmp_path / "t.csv", "x", cells))
    frame = read_party_table(party)
    said = "column 'x': most of its distinct cells look like numbers"
    encoder = Encoder.of_party(frame, party, np.arange(frame.height), numbers="plain")
    assert any(note.startswith(said) for note in encoder.notes)
    assert any(line.startswith(said) for line in profile(frame, party).warnings)
    listed = party.model_copy(update={"features": FeatureColumns(categorical=("x",))})
    assert not any(line.startswith(said) for line in profile(frame, listed).warnings)


DAYS = [date(2020, 1, 1) + timedelta(days=day) for day in range(0, 900, 30)]
MOMENTS = [datetime(2020, 1, 1, 9, 5, 7) + timedelta(days=day) for day in range(0, 900, 30)]


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("dates or times", [day.strftime("%G-W%V-%u") for day in DAYS]),
        ("dates or times", [moment.strftime("%a, %d %b %Y %H:%M:%S +0000") for moment in MOMENTS]),
        ("dates or times", [moment.strftime("%a %b %d %H:%M:%S %Y") for moment in MOMENTS]),
        ("dates or times", [moment.strftime("%Y-%m-%dt%H:%M:%Sz") for moment in MOMENTS]),
        ("dates or times", [f"{day.year}年{day.month}月{day.day}日" for day in DAYS]),
        ("dates or times", [f"{day.year}년 {day.month}월 {day.day}일" for day in DAYS]),
        ("numbers", [f"{number}.5\u00d710³" for number in range(30)]),
        ("numbers", [f"{number}.5 x 10^-3" for number in range(30)]),
        ("numbers", [f"{number}\u00b0{number}'N" for number in range(30)]),
        ("numbers", [f"{number}ft {number % 12}in" for number in range(30)]),
        ("numbers", [f"{number}\u00b10.1" for number in range(30)]),
        ("numbers", [f"{7211 + 37 * number}.{number % 13}{'*' * (number % 5 == 0)}" for number in range(30)]),
        ("dates or times", [day.strftime("%d. %B %Y") for day in DAYS]),
        ("dates or times", [day.strftime("%Y.%m") for day in DAYS]),
        ("dates or times", [f"{year}Q{quarter}" for year in range(2015, 2024) for quarter in (1, 2, 3, 4)]),
        ("dates or times", [f"{year}h{half}" for year in range(2008, 2024) for half in (1, 2)]),
        ("dates or times", [f"Q{quarter} {year}" for year in range(15, 24) for quarter in (1, 2, 3, 4)]),
        ("dates or times", [f"{quarter}Q{year}" for year in range(15, 24) for quarter in (1, 2, 3, 4)]),
        (None, [f"S{number}" for number in range(100, 400, 7)]),
        (None, [f"{1000 + number * 37}M{number}" for number in range(30)]),
        ("dates or times", [day.strftime("%b-%y") for day in DAYS]),
        ("dates or times", [f"{number + 1} de noviembre de {day.year}" for number, day in enumerate(DAYS)]),
        ("dates or times", [f"{number + 1}. hein\u00e4kuuta {day.year}" for number, day in enumerate(DAYS)]),
        ("dates or times", [f"April {number + 1}th, {day.year}" for number, day in enumerate(DAYS)]),
        ("dates or times", [f"{number + 1}th of April {day.year}" for number, day in enumerate(DAYS)]),
        ("dates or times", [f"\u4ee4\u548c{day.month}年{day.month}月{day.day}日" for day in DAYS]),
        ("dates or times", [str(day).replace("-", "\u2011") for day in DAYS]),
        ("dates or times", [f"'{day}" for day in DAYS]),
        ("numbers", [f"{number}\u00b75" for number in range(30)]),
        ("numbers", [f"{number}\u00bd" for number in range(30)]),
        ("numbers", [chr(0x2460 + number) for number in range(20)]),
        ("numbers", [f"{number}x{number + 7}" for number in range(30)]),
        ("numbers", ["7 kg", "7 KG", *(f"{number} kg" for number in range(30))]),
        ("numbers", [f"R{number * 37}.{number + 10}" for number in range(30)]),
        ("numbers", [f"R{number + 1},{number * 7:03}" for number in range(10, 40)]),
        ("numbers", [f"RM{number * 37}" for number in range(30)]),
        ("numbers", [f"CHF{number}.50" for number in range(30)]),
        ("numbers", [f"-USD{number}" for number in range(30)]),
        ("numbers", [f"about {number * 3}" for number in range(30)]),
        ("numbers", [f"less than {number}.5 kg" for number in range(30)]),
        (None, [f"{'JKLM'[number % 4]}{number + 10}.{number % 10}0" for number in range(30)]),
        (None, [f"R{number + 10}.{number % 10}" for number in range(30)]),
        (None, [f"R{number // 9}.{number % 9}.{number % 5}" for number in range(30)]),
        (None, [f"R{number}" for number in range(30)]),
        (None, [f"{number}A{number}" for number in range(30)]),
        (None, [f"Flat {number}" for number in range(30)]),
        (None, [f"AB-{number:03}" for number in range(30)]),
        (None, [f"{number} High Street" for number in range(30)]),
        (None, [f"model x{number}0" for number in range(30)]),
    ],
)
def test_text_that_looks_like_times_or_numbers_is_said_and_names_are_not(kind, cells):
    said = text_warning(pl.Series("x", cells))
    assert said is None if kind is None else f"look like {kind}" in said


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([*"1234" * 10, "often"], "'often' in 1 row"),
        ([*"1234" * 10, "x", "none here", "x"], "'none here', 'x' in 3 rows"),
        ([*["1.5", "2", "2.5"] * 10, "often"], "'often' in 1 row"),
        ([*["01", "02", "03"] * 10, "often"], None),  # codes
        ([*"1234" * 10, *["often"] * 20], None),
        ([*"1234" * 10, "4+"], None),
        ([*"12" * 20, "often"], None),
        ([*["red", "green"] * 10, "1"], None),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_rare_word_beside_few_different_numbers_is_said_until_the_party_says_what_it_is(cells, said, ending, tmp_path):
    """Beside many different numbers it marks a missing cell, and the column stays numbers."""
    frame = pl.DataFrame({"id": range(len(cells)), "x": cells})
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")

    def lines(**table):
        values = {"party": "a", "table": {"path": f"t.{ending}", **table}, "keys": {"id": "id"}}
        party = parse_party(values, folder=tmp_path)
        read = read_party_table(party)
        encoder = Encoder.of_party(read, party, np.arange(len(cells)), numbers="plain")
        found = [[line for line in each if "are numbers but" in line] for each in (encoder.notes, profile(read, party).warnings)]
        assert found[0] == found[1]
        return found[0]

    assert [f"all its cells are numbers but {said}" in line for line in lines()] == ([True] if said else [])
    words = sorted({cell for cell in cells if cell.isalpha() or " " in cell})
    assert lines(missing_in={"x": words}) == lines(missing_in={"x": []}) == []
    if said and ending == "csv":
        read = read_table(TableConfig(path=tmp_path / "t.csv", missing_in={"x": words}, decimal="."))
        assert read.schema["x"].is_numeric()


@pytest.mark.parametrize("cell", ["1.{0}.3", "2.{0}.0", "{0}{0}-750"])
def test_versions_and_numbers_of_parts_are_not_called_dates(cell):
    said = text_warning(pl.Series("x", [cell.format(number) for number in range(10, 40)]))
    assert "look like dates" not in said


@pytest.mark.parametrize("cell", ["{0}-{1}", "{0} years {1} months", "POINT({0}.5 {1}.5)", "<b>{0}</b>", '{{"a": {0}}}'])
def test_text_whose_cells_differ_in_their_numbers_alone_is_said(cell):
    column = pl.Series("x", [cell.format(number, number + 5) for number in range(30)])
    assert "most of its different cells differ in their numbers alone" in text_warning(column)


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (["yes", "no", "Y", "N"], 4),
        (["true", "0", "yes", "off"], 4),
        (["ja", "nein", "1"], 3),
        (["yes", "no"], None),
        (["yes", "y", "on"], None),
        (["yes", "no", "perhaps"], None),
    ],
)
def test_true_and_false_spelt_in_several_ways_are_said(words, ways):
    said = text_warning(pl.Series("x", words * 3))
    assert said is None if ways is None else f"its cells spell true and false in {ways} ways" in said


@pytest.mark.parametrize(
    ("made_of", "cells"),
    [
        ("ranges", ["1-3", "4-7", "13-Aug", "14-20", "20+"]),
        ("ranges", ["03-Jan", "07-Apr", "13-Aug", "14-20"]),
        ("ranges", ["3. Jan", "7. Apr", "13. Aug", "14-20"]),
        ("ranges", ["13-ao\u00fbt", "14-20"]),
        ("ranges", ["2023-08-13", "1-3", "14-20"]),
        ("ranges", ["2023-08-13 00:00:00", "14/20"]),
        ("ranges", ["Aug-13", "14\u201320"]),
        ("codes", ["2-Sep", "BRCA1", "TP53"]),
        ("codes", ["Mar-01", "BRCA1", "DEC1"]),
        ("codes", ["1-M\u00e4r", "SEPT2", "TP53"]),
        (None, ["1-3", "4-7", "8-13"]),
        (None, ["13-Aug", "14-Aug"]),
        (None, ["2023-08-13", "never"]),
        (None, ["2023-08-13", "2023-08-14"]),
        (None, ["13-Aug", "unknown", "later"]),
        (None, ["BRCA1", "TP53", "may"]),
        (None, ["March 1", "some day", "later"]),
        (None, ["10-20 mm", "20-30 mm"]),
        (None, ["Pro 3", "Mini 4", "Air 2", "Gen 2"]),
        (None, ["BOX-12", "SET-12", "PAK-02"]),
    ],
)
def test_dates_that_a_spreadsheet_made_of_ranges_or_codes_are_said(made_of, cells, tmp_path):
    column = pl.Series("x", cells * 3)
    said = text_warning(column)
    assert (said is not None and f"a spreadsheet made of {made_of}" in said) == (made_of is not None), said
    frame = pl.DataFrame({"id": cells, "y": range(len(cells))})
    party = party_of(tmp_path / "t.csv")
    told = [
        line for line in profile(frame, party).warnings if line.startswith("key column 'id': some of its cells look like dates")
    ]
    assert len(told) == (made_of is not None)


@pytest.mark.parametrize(
    ("trained", "later"),
    [
        ("S\u00e3o Paulo", "S\u00e3o\u00a0Paulo"),
        ("S\u00e3o Paulo", "Sa\u0303o  Paulo"),
        ("M\u00fcnster", "M&uuml;nster"),
        ("A&B", "A&amp;B"),
        ("0012", "12"),
        ("12", "0012"),
        ("one\r\ntwo", "one\ntwo"),
        ("\uff21\uff22", "AB"),
        ("office", "o\ufb03ce"),
        ("soft", "so\u00adft\u200b"),
    ],
)
def test_a_category_that_is_spelt_in_another_way_later_is_said(trained, later, tmp_path):
    """In a few rows of several; the others are categories as always."""
    party = party_of(tmp_path / "t.csv", encoding={"min_count": 1}, features={"categorical": ["x"]})
    first = pl.DataFrame({"id": range(40), "x": ([trained] + ["red"] * 9) * 4})
    encoder = Encoder.of_party(first, party, np.arange(40), numbers="plain")
    assert later_doubts(first, encoder) == []
    (line,) = later_doubts(first.with_columns(x=pl.col("x").replace(trained, later)), encoder)
    assert "in 4 of 40 rows a cell differs from a category of the training only in spaces, case, quotes, leading zeros" in line


@pytest.mark.parametrize(
    ("cells", "is_said"),
    [
        (["K\u00c3\u00b6ln", "Bonn"], True),
        (["\u00c3\u2026rhus", "Bonn"], True),
        (["it\u00e2\u20ac\u2122s", "Bonn"], True),
        (["K\x94ln", "Bonn"], True),
        (["K\ufffdln", "Bonn"], True),
        (["\u041c\u043e\u0441\u043a\u0432\u0430".encode("cp1251").decode("cp1252"), "Bonn"], True),
        (["\u5317\u4eac".encode("gbk").decode("cp1252"), "Bonn"], True),
        (["\u20ac\u20ac\u20ac\u20ac", "\u00a3\u00a3\u00a3\u00a3", "j\u00e4\u00e4\u00e4\u00e4r", "cr\u00e9\u00e9es"], False),
        (["K\u00f6ln", "S\u00e3o Paulo", "\u00c2rt", "\u00c3\u00c2"], False),
        (["\u041c\u043e\u0441\u043a\u0432\u0430", "\u6771\u4eac", "5 \u20ac"], False),
    ],
)
def test_text_that_another_encoding_made_is_said(cells, is_said, tmp_path):
    said = "some of its cells hold"
    assert (said in (text_warning(pl.Series("x", cells)) or "")) == is_said
    frame = pl.DataFrame({"id": cells, "y": range(len(cells))})
    assert (
        any(line.startswith(f"key column 'id': {said}") for line in profile(frame, party_of(tmp_path / "t")).warnings) == is_said
    )


@pytest.mark.parametrize(
    ("last", "is_said"),
    [("Total", True), ("Gesamtergebnis:", True), (" GRAND TOTAL ", True), ("\u603b\u8ba1", True), ("c", False)],
)
def test_a_row_that_sums_up_others_is_said(last, is_said, tmp_path):
    for ids in (["a", "b", last], ["a", last, "b"]):
        frame = pl.DataFrame({"id": ids, "y": [1, 2, 3]})
        said = [line for line in profile(frame, party_of(tmp_path / "t")).warnings if "a word such as Total in 1 (row " in line]
        assert len(said) == is_said


@pytest.mark.parametrize(
    ("line", "is_said"),
    [("End of report", True), ("# by, hand, in, May", True), ("\x1a", True), ("k7", False), ("(12 rows)", False)],
)
def test_a_line_among_keys_with_digits_that_has_none_is_said(line, is_said, tmp_path):
    """If a few keys of many have no digit, they are lines of another kind. If many have none, keys are names."""
    path = csv(tmp_path / "t.csv", "x,c,d", [f"{number},a,b" for number in range(60)])
    path.write_text(path.read_text().replace("\n7,", f"\n{line}\n7,"))
    party = party_of(path)
    said = [each for each in profile(read_party_table(party), party).warnings if "key column 'id': no digit in 1 (row 7" in each]
    assert len(said) == is_said
    names = pl.DataFrame({"id": ["Ann", "Bob", *(f"k{number}" for number in range(30))]})
    assert not [each for each in profile(names, party_of(tmp_path / "t")).warnings if "no digit" in each]


@pytest.mark.parametrize(("letters", "length"), [("0123456789abcdef", 8), (string.ascii_letters + string.digits, 28)])
def test_random_keys_some_of_which_have_no_digit_or_look_like_an_exponent_are_not_said(letters, length, tmp_path):
    drawn = random.Random(1)
    ids = ["".join(drawn.choice(letters) for _ in range(length)) for _ in range(8000)]
    assert any(not re.search("[0-9]", each) for each in ids)

    def doubts(keys):
        return [each for each in profile(pl.DataFrame({"id": keys}), party_of(tmp_path / "t")).warnings if "key column" in each]

    assert doubts(ids) == []
    (line,) = doubts([*ids, "End of report"])
    assert "no digit in 1 (row 8000" in line
    (line,) = doubts([*ids, "1.2E+15"])
    assert "a fraction or an exponent in 1 (row 8000" in line


def test_check_shows_three_cells_of_each_column(tmp_path):
    party = party_of(csv(tmp_path / "t.csv", "x", ["1.5", "1.5", "2", "3", "4"]))
    (_, column) = profile(read_party_table(party), party).columns
    assert column.samples == ("1.5", "2.0", "3.0")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dates_are_read_as_the_party_file_says_they_are_written(tmp_path, ending):
    frame = pl.DataFrame({"id": ["a", "b", "c"], "since": ["31.12.2023", "05.03.2024", None]})
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")
    values = {"party": "a", "table": {"path": f"t.{ending}"}, "keys": {"id": "id"}, "dates": {"since": "%d.%m.%Y"}}
    read = read_party_table(parse_party(values, folder=tmp_path)).get_column("since")
    assert read.to_list() == [date(2023, 12, 31), date(2024, 3, 5), None]
    with pytest.raises(DataError, match=r"dates.since = '%m.%d.%Y': cells have another format in 1 \(row 0"):
        read_party_table(parse_party({**values, "dates": {"since": "%m.%d.%Y"}}, folder=tmp_path))
    with pytest.raises(DataError, match=r"dates\.sinse: is not in the table"):
        read_party_table(parse_party({**values, "dates": {"sinse": "%d.%m.%Y"}}, folder=tmp_path))


def test_an_index_of_pandas_without_a_name_is_no_column_of_a_file_either(tmp_path):
    pl.DataFrame({"id": ["a", "b"], "x": [1.0, 2.0], "__index_level_0__": [7, 3]}).write_parquet(tmp_path / "t.parquet")
    party = parse_party({"party": "a", "table": {"path": "t.parquet"}, "keys": {"id": "id"}}, folder=tmp_path)
    frame = read_party_table(party)
    assert frame.columns == ["id", "x"]
    assert frame.notes == ("the index of pandas has no name and was left out",)


@pytest.mark.parametrize(
    ("trained", "later", "values"),
    [
        ([*map(str, range(1, 31)), "keine Angabe"], ["keine Angabe", "7"], [None, 7]),
        ([f"2024-01-{day:02}" for day in range(1, 29)] + ["inconnu"], ["inconnu", "2024-01-03"], [None, date(2024, 1, 3)]),
        ([f"{hour:02}:30" for hour in range(24)] + ["geschlossen"], ["geschlossen", "23:30:00"], [None, time(23, 30)]),
    ],
)
def test_words_that_marked_missing_cells_in_training_do_so_in_a_short_later_file(tmp_path, trained, later, values):
    party = party_of(csv(tmp_path / "train.csv", "x", trained))
    frame = read_party_table(party)
    encoder = Encoder.from_json(Encoder.of_party(frame, party, np.arange(frame.height), numbers="plain").to_json())
    table = read_rows(party.table_at(csv(tmp_path / "later.csv", "x", later)), party, trained=encoder)
    assert table.get_column("x").to_list() == values
    assert encoded(encoder, table)[0] == encoded(encoder, frame)[-1]
