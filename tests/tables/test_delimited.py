"""CSV as people write it: separators, encodings, dates, decimal commas, and tables in several files."""

import gzip
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.check import check_party_file
from tallystick.config.party import load_party, parse_party
from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, DataError
from tallystick.tables.delimited import NUMBERS, read_delimited
from tallystick.tables.doubtful_text import text_warning
from tallystick.tables.table import read_party_table, read_table, require_named
from tallystick.tables.times import likely_formats, with_dates


def read(folder: Path, content: str | bytes | None, *, text: tuple[str, ...] = (), **keys: Any) -> pl.DataFrame:
    keys = {"path": "t.csv"} | keys
    if content is not None:
        (folder / keys["path"]).write_bytes(content.encode() if isinstance(content, str) else content)
    table = parse_party({"party": "p", "table": keys}, folder=folder).table
    assert table is not None
    return read_table(table, text=text).collect()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_separators_are_found(tmp_path: Path, separator: str, name: str) -> None:
    lines = 'id,a,note\n007,1,"x, y; z"\n8,2,"two\nlines|"\n'.replace(",", separator).replace(f"x{separator} ", "x, ").encode()
    found = read(tmp_path, gzip.compress(lines) if name.endswith(".gz") else lines, path=name, text=("id",))
    assert found.rows() == [("007", 1, "x, y; z"), ("8", 2, "two\nlines|")]


def test_the_ending_decides_where_two_separators_fit_and_the_party_file_decides_always(tmp_path: Path) -> None:
    lines = "a;b,c\n1;2,3\n4;5,6\n"
    assert read(tmp_path, lines).columns == ["a;b", "c"]
    assert read(tmp_path, lines, separator=";").columns == ["a", "b,c"]
    with pytest.raises(ConfigError, match=r'table.separator = ";;": must be one ASCII character, such as ";"'):
        read(tmp_path, lines, separator=";;")


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_are_certain_need_no_key(tmp_path: Path, codec: str) -> None:
    assert read(tmp_path, "id,größe\n1,Müller\n".encode(codec)).to_dicts() == [{"id": 1, "größe": "Müller"}]


@pytest.mark.parametrize("content", ["id,name\n1,Müller\n", "id,größe\n1,2\n", "id,name\n" + "1,abc\n" * 20_000 + "1,Müller\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_other_encodings_are_named_and_the_error_says_how(tmp_path: Path, content: str, name: str) -> None:
    raw = content.encode("windows-1252")
    raw = gzip.compress(raw, 1) if name.endswith(".gz") else raw
    with pytest.raises(DataError, match=r"is not text in utf-8; name its encoding .*: `encoding: windows-1252` fits its letters"):
        read(tmp_path, raw, path=name)
    found = read(tmp_path, raw, path=name, encoding="windows-1252")
    assert ",".join(map(str, found.row(-1))) == content.splitlines()[-1]
    assert found.columns == content.splitlines()[0].split(",")
    with pytest.raises(DataError, match="is not text in utf-16"):
        read(tmp_path, raw, path=name, encoding="utf-16")
    with pytest.raises(ConfigError, match=r'table.encoding = "latin99": must be the name of a text encoding'):
        read(tmp_path, raw, path=name, encoding="latin99")


def test_iso_dates_are_dates_and_what_is_no_date_stays_text(tmp_path: Path) -> None:
    lines = (
        "key,day,moment,zoned,wrong,german\n"
        "2024-01-01,2024-02-29,2024-02-29 13:05,2024-02-29T13:05:00Z,2024-02-30,29.02.2024\n"
        "2024-01-02,,2024-02-29T13:05:01.5,2024-02-29 13:05+02,2024-02-28,01.03.2024\n"
    )
    found = read(tmp_path, lines, text=("key",))
    assert found.row(0)[:2] == ("2024-01-01", date(2024, 2, 29))
    assert found["moment"].to_list() == [datetime(2024, 2, 29, 13, 5), datetime(2024, 2, 29, 13, 5, 1, 500_000)]
    assert found["zoned"].to_list() == [datetime(2024, 2, 29, 13, 5, tzinfo=UTC), datetime(2024, 2, 29, 11, 5, tzinfo=UTC)]
    assert found["day"][1] is None
    assert found.schema["wrong"] == found.schema["german"] == pl.String


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ("x;n\n1,5;1.250\n2,25;3.500\n", [(1.5, 1250.0), (2.25, 3500.0)]),
        ("x;n\n-1,5;1.234.567\n1,5e3;12\n", [(-1.5, 1234567.0), (1500.0, 12.0)]),
        ('x,n\n"1,234.5",1\n"12",2\n', [(1234.5, 1), (12.0, 2)]),
        ('x,n\n"1,5",\n,2\n', [(1.5, None), (None, 2)]),
        ('x,n\n"1,500",0.5\n"2,500",1.5\n', [(1500.0, 0.5), (2500.0, 1.5)]),
    ],
)
def test_decimal_commas_that_are_certain_need_no_key(tmp_path: Path, lines: str, numbers: list[tuple[float, ...]]) -> None:
    assert read(tmp_path, lines).rows() == numbers


def test_decimal_commas_that_are_not_certain_are_asked_for(tmp_path: Path) -> None:
    lines = "x;y\n1,234;a\n5,678;b\n"
    with pytest.raises(DataError, match=r"column 'x' has commas that may be decimal signs or thousands separators; say which"):
        read(tmp_path, lines)
    assert read(tmp_path, lines, decimal=",")["x"].to_list() == [1.234, 5.678]
    assert read(tmp_path, lines, decimal=".")["x"].to_list() == [1234, 5678]
    mixed = "x;y\n1,5;0.5\n2,5;0.25\n"
    with pytest.raises(DataError, match="column 'x' has decimal commas and column 'y' decimal points; say which"):
        read(tmp_path, mixed)
    with pytest.raises(DataError, match="column 'y' has decimal points, but the decimal sign is"):
        read(tmp_path, mixed, decimal=",")
    assert read(tmp_path, mixed, decimal=".").rows() == [("1,5", 0.5), ("2,5", 0.25)]
    # A key is text whatever it looks like.
    assert read(tmp_path, lines, text=("x",))["x"].to_list() == ["1,234", "5,678"]


@given(st.lists(st.floats(-1e9, 1e9).map(lambda number: round(number, 2)), min_size=1), st.sampled_from([",", "."]))
def test_numbers_of_both_kinds_read_back(tmp_path_factory: pytest.TempPathFactory, numbers: list[float], decimal: str) -> None:
    spelt = [f"{number:,.2f}" for number in numbers]
    if decimal == ",":
        spelt = [text.translate(str.maketrans(",.", ".,")) for text in spelt]
    assert pl.Series(spelt).str.contains(NUMBERS[decimal]).all()
    path = tmp_path_factory.mktemp("numbers") / "t.csv"
    path.write_text("x;y\n" + "".join(f"{text};a\n" for text in spelt))
    table = parse_party({"party": "p", "table": {"path": str(path), "decimal": decimal}}, folder=path.parent).table
    assert table is not None
    assert read_delimited([path], table, text=()).get_column("x").to_list() == pytest.approx(numbers, abs=1e-9)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv: more than one column is called 'a'"):
        read(tmp_path, "id,a,a\n1,2,3\n")
    with pytest.raises(DataError, match="more than one column is called 'a'"):
        read(tmp_path, None, path=None, query="select 1 as a, 2 as a")


@pytest.mark.parametrize("path", ["parts", "parts/*.csv", "parts/p-?.csv"])
def test_a_folder_or_a_pattern_is_one_table(tmp_path: Path, path: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "p-2.csv").write_text("code,x,id,n\n7,1.5,3,4\n")
    (tmp_path / "parts" / "p-1.csv").write_text("id,x,code,n\n1,1,abc,\n2,2,007,\n")
    (tmp_path / "parts" / "_SUCCESS").touch()
    found = read(tmp_path, None, path=path)
    # A column that is text in one file keeps its spelling in the other; one without values takes the other's type.
    assert found.rows() == [(1, 1.0, "abc", None), (2, 2.0, "007", None), (3, 1.5, "7", 4)]


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(DataError, match="the folder holds no file that ends in"):
        read(tmp_path, None, path="parts")
    with pytest.raises(DataError, match="no file fits this pattern"):
        read(tmp_path, None, path="parts/*.csv")
    (folder / "1.csv").write_text("id,x\n1,2\n")
    (folder / "2.csv").write_text("id,y\n1,2\n")
    with pytest.raises(DataError, match=r"2\.csv: has other columns than .*1\.csv: 'x', 'y' in only one"):
        read(tmp_path, None, path="parts")
    pl.DataFrame({"id": [1]}).write_parquet(folder / "1.parquet")
    with pytest.raises(DataError, match=r"holds 1\.csv and 1\.parquet; the files of one table must be of one kind"):
        read(tmp_path, None, path="parts")


def test_parquet_files_as_one_table(tmp_path: Path) -> None:
    for name, frame in {
        "1": pl.DataFrame({"id": ["b"], "x": [1]}),
        "2": pl.DataFrame({"x": [1.5], "id": ["a"]}),
    }.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    assert read(tmp_path, None, path="*.parquet").rows() == [("b", 1.0), ("a", 1.5)]
    pl.DataFrame({"id": ["c"], "x": ["2"]}).write_parquet(tmp_path / "3.parquet")
    with pytest.raises(DataError, match=r"3\.parquet: column 'x' has type String, and Int64 in .*1\.parquet"):
        read(tmp_path, None, path="*.parquet")
    pl.DataFrame({"id": ["c"]}).write_parquet(tmp_path / "3.parquet")
    with pytest.raises(DataError, match=r"3\.parquet: has other columns than .*1\.parquet: 'x' in only one"):
        read(tmp_path, None, path="*.parquet")


def test_keys_of_csv_files_go_with_files_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table\.separator: only works with path"):
        read(tmp_path, None, path=None, query="select 1", separator=";")


def test_whole_numbers_of_more_digits_than_integers_hold_are_numbers(tmp_path: Path) -> None:
    first, second = 12345678901234567890123, "9" * 300
    found = read(tmp_path, f"id,a,b,c\n1,{first},1,{second}\n2,5,2,3\n")
    assert found.rows() == [(1, first, 1, float(second)), (2, 5, 2, 3.0)]


@pytest.mark.parametrize("mark", ["?", "-", "n/a", "N/A", "#N/A", "None", ".", "NA", "nan", "NULL", " "])
def test_common_marks_of_a_missing_number_are_known_and_said(tmp_path, mark):
    table = TableConfig(path=tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(f"id,a,b\nx,1.5,2\ny,{mark},{mark}\nz,-2.5,3\n")
    frame = read_table(table)
    assert frame.get_column("a").to_list() == [1.5, None, -2.5]
    assert frame.get_column("b").to_list() == [2, None, 3]
    assert frame.get_column("b").dtype == pl.Int64
    assert [mark.strip() in note and "'b'" in note for note in frame.notes] == ([True] if mark.strip() else [])


@pytest.mark.parametrize(
    ("spelt", "number"),
    [
        ("1'234.5", 1234.5),
        ("1\u2019234'567.5", 1234567.5),
        ("1\u00a0234.5", 1234.5),
        ("\u22123.2", -3.2),
        ("1 234", 1234),
        ("\u00a07.5 ", 7.5),
        (".5", 0.5),
        ("-.802", -0.802),
        ("-7.", -7),
        ("+.5e3", 500),
    ],
)
def test_numbers_are_read_whatever_parts_their_thousands(tmp_path, spelt, number):
    (tmp_path / "t.csv").write_text(f"id,a\nx,0.25\ny,{spelt}\n", encoding="utf-8")
    assert read_table(TableConfig(path=tmp_path / "t.csv")).get_column("a").to_list() == [0.25, number]


@pytest.mark.parametrize(
    "spelt",
    [
        "+49 30 {0:06}",
        "+34 612 345 {0:03}",
        "030 {0:03} 456",
        "0{0:02} 345 678",
        "12 {0:03} 45",
        "4 {0:03}'111",
        "1234 567 {0:03}",
    ],
)
def test_digits_that_are_parted_otherwise_than_by_thousands_are_text_and_asked_about(tmp_path, spelt):
    """The telephone number +49 30 000001 was read as 4930000001, without a message."""
    column, _ = column_of(tmp_path, [spelt.format(number) for number in range(30, 60)])
    assert column.dtype == pl.String
    assert "look like numbers" in text_warning(column)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["01067", "10115"], True),
        (["+4930123456", "+33123456789"], True),
        (["01067", "10115", "?"], True),
        (["+4930123456", "+33123456789", "-"], True),
        (["+5", "-3", "+120000", "0"], False),
        (["01", "12"], False),  # a month
        (["0.25", "1.5"], False),
    ],
)
def test_digits_that_may_be_codes_are_said(tmp_path, cells, said):
    """The postcode 01067 is the number 1067 unless the party file says otherwise, and a message says so."""
    column, frame = column_of(tmp_path, cells)
    assert column.dtype.is_numeric()
    assert [True for note in frame.notes if "such as 01067" in note and "in column 'x'" in note] == [True] * said
    assert read_table(TableConfig(path=tmp_path / "t.csv"), text=("x",)).get_column("x").to_list()[:2] == cells[:2]


@pytest.mark.parametrize("spelt", ['="{}"', '"=""{}"""', ' ="{}" '], ids=["as Excel takes it", "in quotes", "with spaces"])
@pytest.mark.parametrize("text", [(), ("x",)])
def test_text_that_excel_keeps_in_a_formula_is_that_text(tmp_path, spelt, text):
    """A key ="01067" matched nobody's 01067."""
    (tmp_path / "t.csv").write_text(
        "id;x\n" + "".join(f"k;{spelt.format(code)}\n" for code in ("01067", "10115", "NA")) + "k;7\n"
    )
    table = read_table(TableConfig(path=tmp_path / "t.csv"), text=text)
    assert table.get_column("x").to_list() == ["01067", "10115", "NA", "7"]
    assert ["in column 'x'" in note for note in table.notes if "Excel" in note] == [True]


def test_words_for_a_missing_cell_are_named_for_all_columns_or_for_one(tmp_path):
    (tmp_path / "t.csv").write_text("id,country,income\n1,NA,-999\n2,DE,5\n3,-999,7\n")
    place = tmp_path / "t.csv"
    frame = read_table(TableConfig(path=place))
    assert frame.get_column("country").to_list() == [None, "DE", "-999"]
    assert "'NA' in column 'country'" in frame.notes[0]
    assert "table.missing_in: {country: []}" in frame.notes[0]
    frame = read_table(TableConfig(path=place, missing_in={"country": [], "income": ["-999"]}))
    assert frame.get_column("country").to_list() == ["NA", "DE", "-999"]
    assert frame.get_column("income").to_list() == [None, 5, 7]
    frame = read_table(TableConfig(path=place, missing=["-999"]))
    assert frame.get_column("country").to_list() == ["NA", "DE", None]
    assert frame.get_column("income").to_list() == [None, 5, 7]


def test_points_that_may_part_thousands_are_asked_about(tmp_path):
    place = tmp_path / "t.csv"
    for written in ("1.001", "1.900", "9.999"):  # not all such quotients of floating point are exact
        place.write_text(f"id;amount\n1;{written}\n2;410\n")
        with pytest.raises(DataError, match="the points may be thousands separators"):
            read_table(TableConfig(path=place))
    place.write_text("id;amount\n1;8.505\n2;410\n3;?\n")
    with pytest.raises(DataError, match=r"column 'amount' has numbers such as 8\.505 and such as 410"):
        read_table(TableConfig(path=place))
    for sign, wanted in ((",", [8505, 410, None]), (".", [8.505, 410, None])):
        assert read_table(TableConfig(path=place, decimal=sign)).get_column("amount").to_list() == wanted
    place.write_text("id;amount;share\n1;8.505;0,5\n2;410;2\n")
    assert read_table(TableConfig(path=place)).get_column("amount").to_list() == [8505, 410]
    place.write_text("id;amount;share\n1;8.505;1.5\n2;410;2\n")
    assert read_table(TableConfig(path=place)).get_column("amount").to_list() == [8.505, 410]


@pytest.mark.parametrize("rest", ["", "3;?\n", "3;\n"], ids=["all", "a mark", "an empty cell"])
def test_points_behind_which_all_numbers_have_three_digits_are_said(tmp_path, rest):
    place = tmp_path / "t.csv"
    place.write_text(f"id;amount\n1;801.200\n2;35.000\n{rest}")
    table = read_table(TableConfig(path=place))
    assert table.get_column("amount").to_list()[:2] == [801.2, 35]
    note = next(note for note in table.notes if "three digits after a point" in note)
    assert "column 'amount'" in note
    assert '`decimal: ","`' in note
    for sign, wanted in ((",", [801200, 35000]), (".", [801.2, 35])):
        table = read_table(TableConfig(path=place, decimal=sign))
        assert table.get_column("amount").to_list()[:2] == wanted
        assert not any("behind a point" in note for note in table.notes)


@pytest.mark.parametrize("others", ["0.5", "1234.5", "801.20", "0,5"])
def test_points_are_not_doubted_where_another_number_tells_the_sign(tmp_path, others):
    place = tmp_path / "t.csv"
    place.write_text(f"id;amount;other\n1;801.200;{others}\n2;35.000;{others}\n")
    table = read_table(TableConfig(path=place))
    assert table.get_column("amount").to_list() == ([801200, 35000] if "," in others else [801.2, 35])
    assert not any("behind a point" in note for note in table.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (",id,a\n0,x,1.5\n1,y,2.5\n", "column 1 only counts rows and was left out"),
        (",id,a\n3,x,1.5\n7,y,2.5\n", "column 1 only counts rows and was left out"),
        (",id,a\n1,x,1.5\n0,y,2.5\n", "column 1 only counts rows and was left out"),
        ("Unnamed: 0,id,a\n0,x,1.5\n1,y,2.5\n", "column 'Unnamed: 0' only counts rows and was left out"),
        ("id,a,\nx,1.5,\ny,2.5,\n", "column 3 is empty and was left out"),
        ("id,a,,\nx,1.5,,\ny,2.5,,\n", "column 4 is empty and was left out"),
        ("sep=;\nid;a\nx;1,5\ny;2,5\n", None),
        ('"sep=;"\r\nid;a\r\nx;1,5\r\ny;2,5\r\n', None),
        ("id,a\rx,1.5\ry,2.5\r", None),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_programs_write_around_a_table_is_no_column_of_it(tmp_path, text, said, packed):
    raw = text.encode()
    (tmp_path / "t.csv").write_bytes(gzip.compress(raw) if packed else raw)  # also under a wrong name
    frame = read_table(TableConfig(path=tmp_path / "t.csv"))
    assert frame.collect().to_dict(as_series=False) == {"id": ["x", "y"], "a": [1.5, 2.5]}
    assert (said in frame.notes) if said else frame.notes == ()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b",id,a\nred,x,1\nblue,y,2\n", "column 1 has values but no name in the header"),
        (b",id,a\n9,x,1\n2,y,2\n", "column 1 has values but no name in the header"),
        (b"id,a\nx,1\ny,2\n\0\0\0\0", "contains NUL bytes"),
        (gzip.compress(b"id,a\nx,1\ny,2\n\0\0", mtime=0), "contains NUL bytes"),
        (b"id,a\nx,r\0d\ny,red\n", "contains NUL bytes"),
        ("id,a\nx,1\ny,2\n".encode("utf-16-be"), "contains NUL bytes.*`encoding: utf-16-be"),
        ("id,a\nx,1\ny,2\n".encode("utf-16-le"), "contains NUL bytes.*`encoding: utf-16-le"),
        (b"\n\nid,a\nx,1\ny,2\n", "begins with an empty line"),
        (b"id,a\rx,1\ry,2\nz,3\n", "some lines end in a carriage return and others"),
        (b"id,a\r\r\nx,1\r\r\ny,2\r\r\n", "some lines end in a carriage return and others"),
        (b"id,a\nx,1\nid,a\ny,2\n", r"its header occurs again in 1 \(row 1,"),
        (b"\xef\xbb\xbfid,a\nx,1\n\xef\xbb\xbfid,a\ny,2\n\xef\xbb\xbfid,a\n", r"again in 2 \(row 1, 3,"),
        (b"2019,id,\n1,x,\n2019,id,\n2,y,\n", r"again in 1 \(row 1,"),
        (b"id,a\nx,1\nID,A\ny,2\n", r"again in 1 \(row 1,"),
        (b"id,a\nx,1\n id, a\ny,2\n", r"again in 1 \(row 1,"),
        (b"id,a,b\nx,1,2\nb,id,a\n2,y,2\n", r"again in 1 \(row 1,"),
    ],
)
def test_what_is_no_table_is_refused_by_name(tmp_path, raw, words):
    (tmp_path / "t.csv").write_bytes(raw)
    with pytest.raises(DataError, match=words):
        read_table(TableConfig(path=tmp_path / "t.csv"))


def test_a_row_whose_words_are_names_of_columns_is_no_header(tmp_path):
    (tmp_path / "t.csv").write_text("yes,no,id\nid,yes,no\nno,yes,yes\n")
    with pytest.raises(DataError, match="its header occurs again"):
        read_table(TableConfig(path=tmp_path / "t.csv"))
    for text in ("yes,no\nno,yes\n", "yes,no,id\nyes,yes,no\n"):
        (tmp_path / "t.csv").write_text(text)
        assert read_table(TableConfig(path=tmp_path / "t.csv")).height == 1


@pytest.mark.parametrize(
    ("cells", "is_said"),
    [
        (["1.1", "1.10", "1.9"], True),
        (["1.10", "1.20", "2.50"], False),
        (["1.5", "1.25", "0.1"], False),
        (["-1.1", "-1.10"], False),
    ],
)
def test_versions_that_become_one_number_are_said(tmp_path, cells, is_said):
    column, frame = column_of(tmp_path, cells)
    assert column.dtype == pl.Float64
    said = "cells such as 1.10 beside ones such as 1.1 are read as the same number in column 'x'"
    assert any(note.startswith(said) for note in frame.notes) == is_said


def test_whole_numbers_beyond_every_integer_type_become_floats_beside_marks(tmp_path):
    (tmp_path / "t.csv").write_text("id,a\nx,18446744073709551616\ny,?\n")
    assert read_table(TableConfig(path=tmp_path / "t.csv")).get_column("a").to_list() == [2.0**64, None]


def test_a_quoted_carriage_return_or_a_cell_that_is_a_columns_name_is_a_cell(tmp_path):
    frame = read(tmp_path, 'id,"a\rb"\nid,x\nk,a\n')
    assert frame.to_dict(as_series=False) == {"id": ["id", "k"], "a\rb": ["x", "a"]}


@pytest.mark.parametrize(("codec", "said"), [("windows-1252", True), ("iso-8859-15", True), ("utf-8", False)])
def test_text_of_utf_8_that_is_named_otherwise_is_said(tmp_path, codec, said):
    """Each ü became Ã¼, and keys with ü matched nobody's."""
    text = "id,a\nx,gr\u00fcn\ny,rot\n"
    for written, is_said in (("utf-8", said), (codec, False)):
        (tmp_path / "t.csv").write_bytes(text.encode(written))
        frame = read_table(TableConfig(path=tmp_path / "t.csv", encoding=codec))
        assert [True for note in frame.notes if f"is valid UTF-8, but table.encoding is {codec}" in note] == [True] * is_said


@pytest.mark.parametrize("row", ["code,kg,text", "#types,numeric,categorical", ",m,"])
def test_a_row_of_units_below_the_header_is_said(tmp_path, row):
    """A column with few numbers became categories, without a message."""
    lines = "".join(f"k{number},{number % 7},{'red' if number % 2 else 'blue'}\n" for number in range(30))
    for first, said in ((f"{row}\n", True), ("", False)):
        (tmp_path / "t.csv").write_text(f"id,a,kind\n{first}{lines}")
        notes = read_table(TableConfig(path=tmp_path / "t.csv"), text=("id",)).notes
        assert [True for note in notes if note.startswith("the first row differs from all others in column 'a'")] == [True] * said


@pytest.mark.parametrize("first", ["", "?"])
def test_a_missing_first_cell_is_no_row_of_units(tmp_path, first):
    """The column is text for another reason: a day that does not exist."""
    column, frame = column_of(tmp_path, [first, *(f"2023-01-{day:02}" for day in range(1, 29)), "2023-02-30"])
    assert column.dtype == pl.String
    assert not [note for note in frame.notes if note.startswith("the first row differs")]


MANY = [f"{number * 1.37:.2f}" for number in range(1, 31)]


def column_of(tmp_path, cells, **table):
    """Return a column of a CSV as it is read, and the notes."""
    lines = "".join(f"k{number};{cell}\n" for number, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text(f"id;x\n{lines}", encoding="utf-8")
    frame = read_table(TableConfig(path=tmp_path / "t.csv", **table))
    return frame.get_column("x"), frame


@pytest.mark.parametrize(
    "word", ["keine Angabe", "нет данных", "暂无", "非公開", "not measured", "< LOD", "#WERT!", "(blank)", "N.C."]
)
def test_a_few_words_beside_many_numbers_mark_missing_cells_in_any_language(tmp_path, word):
    column, frame = column_of(tmp_path, [*MANY, word, word])
    assert column.to_list() == [*map(float, MANY), None, None]
    assert f"{word!r} in column 'x'" in frame.notes[0]
    assert frame.missing["x"] == (word,)
    days = [f"2024-01-{day:02}" for day in range(1, 29)]
    assert column_of(tmp_path, [*days, word])[0].to_list() == [*map(date.fromisoformat, days), None]


def test_words_that_may_be_values_beside_numbers_stay_text(tmp_path):
    for cells in ([*MANY, "A"], [*MANY, *"abcdef"], [*MANY[:5], "none here"], [*MANY, *["often"] * 30], [*MANY, "12a"]):
        column, frame = column_of(tmp_path, cells)
        assert column.to_list() == cells
        assert not frame.notes


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([*map(str, range(1, 41)), *["EG", "UG"] * 9], "'EG', 'UG'"),  # floors
        ([*map(str, range(40, 100)), *["pass", "fail"] * 20], "'fail', 'pass'"),  # marks
        ([*map(str, range(1, 31)), *["AB"] * 7], "'AB'"),  # codes
        ([*map(str, range(34, 64, 1)), *["XL", "XXL"] * 3], "'XL', 'XXL'"),  # sizes
        ([*map(str, range(34, 64, 1)), *["S", "M", "L", "XL"] * 3], None),
        ([*(f"2024-01-{day:02}" for day in range(1, 29)), "never"], "'never'"),
    ],
)
def test_check_names_words_that_it_takes_for_missing_and_both_ways_to_keep_them_work(tmp_path, cells, words):
    lines = "".join(f"k{number},{cell},{number % 7},{number % 2}\n" for number, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text(f"id,x,w,y\n{lines}")

    def checked(table="", features="auto"):
        (tmp_path / "party.yaml").write_text(
            f"party: bank\ntable: {{path: t.csv{table}}}\nkeys: {{id: id}}\nlabel: y\nfeatures: {features}\n"
        )
        found = check_party_file(tmp_path / "party.yaml", None)
        assert not found["problems"]
        return [each for each in found.get("encoding", ()) if "missing" in each]

    notes = checked()
    if words is None:
        assert not notes
        return
    (note,) = notes
    said = f"are numbers or times: {words} in column 'x'; if they are values, keep them by table.missing_in: {{x: []}}"
    assert said in note
    for kept in ({"table": ", missing_in: {x: []}"}, {"features": "{numeric: [w], categorical: [x]}"}):
        assert not checked(**kept)
        assert read_party_table(load_party(tmp_path / "party.yaml")).get_column("x").to_list() == cells
    (note,) = checked(table=f", missing: [{words.replace(chr(39), '')}]")
    assert note.startswith(f"cells that count as missing: {words} in column 'x'")


@pytest.mark.parametrize(
    ("spelt", "number"),
    [
        ("\uff11\uff12.5", 12.5),
        ("\uff11\uff12\uff0e\uff15", 12.5),
        ("\u0661\u0662\u066b\u0665", 12.5),
        ("\u0661\u0662\u0663", 123),
        ("\u06f1\u06f2", 12),
        ("\uff0d\uff11", -1),
        ("\ufeff7.5", 7.5),
        ("7\u200b.5", 7.5),
        ("1\u2007234", 1234),
        ("\u200b", None),
    ],
)
def test_digits_and_signs_of_every_script_are_numbers(tmp_path, spelt, number):
    assert column_of(tmp_path, ["0.25", spelt])[0].to_list() == [0.25, number]


def test_digits_of_another_script_alone_are_numbers_and_days(tmp_path):
    wide = str.maketrans("0123456789", "".join(chr(0xFF10 + digit) for digit in range(10)))
    assert column_of(tmp_path, [str(number).translate(wide) for number in range(30)])[0].to_list() == list(range(30))
    assert column_of(tmp_path, ["2024-02-29".translate(wide), "2024-03-01"])[0].to_list() == [date(2024, 2, 29), date(2024, 3, 1)]


def test_days_beside_moments_are_midnights_and_days_that_databases_write_for_none_are_missing(tmp_path):
    column, _ = column_of(tmp_path, ["2024-02-29", "2024-03-01 12:30", "2024-03-01T01:02:03.5"])
    assert column.to_list() == [
        datetime(2024, 2, 29),
        datetime(2024, 3, 1, 12, 30),
        datetime(2024, 3, 1, 1, 2, 3, 500_000),
    ]
    assert column_of(tmp_path, ["2024-02-29", "0000-00-00", "1900-01-00"])[0].to_list() == [date(2024, 2, 29), None, None]


def test_times_of_day_are_times_as_in_other_files(tmp_path):
    assert column_of(tmp_path, ["01:30:00", "23:59", "-", "12:00:00.25"])[0].to_list() == [
        time(1, 30),
        time(23, 59),
        None,
        time(12, 0, 0, 250_000),
    ]
    assert column_of(tmp_path, ["01:30:00", "25:00:00"])[0].dtype == pl.String  # a duration


def test_a_fraction_behind_a_zero_is_no_part_of_thousands(tmp_path):
    with pytest.raises(DataError, match="column 'x' has decimal points, but the decimal sign is"):
        column_of(tmp_path, ["0.250", "1.250"], decimal=",")
    assert column_of(tmp_path, ["0,250", "1,250"])[0].to_list() == [0.25, 1.25]


@pytest.mark.parametrize("cell", [r'"a\"b"', 'a"b', '"a"b'])
def test_quotes_that_would_swallow_lines_are_refused_by_line(tmp_path, cell):
    with pytest.raises(DataError, match=r"t\.csv: (line \d+: its quotes cannot be read|a cell without quotes around it)"):
        column_of(tmp_path, [cell] * 6 + ["plain"])
    assert column_of(tmp_path, ['"a\nb"', '"a ""b"""'])[0].to_list() == ["a\nb", 'a "b"']


@pytest.mark.parametrize(
    ("spelt", "hint"),
    [
        ("{0}/{1}/24", "dates"),
        ("{1:02}.{0:02}.2024", "dates"),
        ("{0} Mar 2024", "dates"),
        ("2024-01-{0:02} 24:00:00", "dates"),
        ("2024-01-{0:02} 12:00 UTC", "dates"),
        ("{0}:3{1}", "times of day"),
        ("0:{0:02}:00", "times of day"),
        ("{1}:{0:02} PM", "times of day"),
        ("2024-W{0:02}", "dates"),
        ("{0} days 01:00:00", "dates"),
        ("{0}.{1}%", "numbers"),
        ("$ {0}.{1}", "numbers"),
        ("({0}.{1})", "numbers"),
        ("{0}.{1}-", "numbers"),
        ("{0}.{1}D+03", "numbers"),
        ("{0}_00{1}", "numbers"),
        ("0x{0:x}", "numbers"),
        ("{0} EUR", "numbers"),
        ("EUR {0}.{1}0", "numbers"),
        ("Rs. {0}", "numbers"),
        ("US${0}", "numbers"),
    ],
)
def test_text_that_looks_like_numbers_or_dates_is_told_of(tmp_path, spelt, hint):
    column, _ = column_of(tmp_path, [spelt.format(number, number % 9 + 1) for number in range(1, 28)])
    assert column.dtype == pl.String
    assert f"look like {hint}" in text_warning(column)


def test_plain_categories_are_not_told_of():
    for cells in (
        ["red", "green"] * 20,
        [f"K{number}" for number in range(30)],
        [f"{number} High Street" for number in range(30)],
    ):
        assert text_warning(pl.Series("x", cells)) is None


@pytest.mark.parametrize("cell", ["x" * 200_000, '"' + "x\n" * 100_000 + '"', '"' + "x," * 100_000 + '"'])
def test_a_long_cell_is_read_whatever_else_its_file_has_the_lines_gone_through_for(tmp_path, cell):
    """Python's own reader of lines, which looks for short ones and at quotes, stops at 131,072 characters."""
    lines = ["a,b,c", *(f"{row},{cell if row == 3 else 'y'},{row if row % 2 else ''}" for row in range(30))]
    frame = read(tmp_path, "\n".join(lines) + "\n")
    assert frame.get_column("b")[3] == cell.strip('"')
    assert frame.get_column("c").null_count() == 15


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_lines_with_too_few_cells_are_told_of_and_with_too_many_refused(tmp_path, separator):
    def read(*lines):
        (tmp_path / "t.csv").write_text("\n".join(lines).replace(",", separator) + "\n")
        return read_table(TableConfig(path=tmp_path / "t.csv", separator=separator))

    frame = read("id,a,b", "k1,2,3", "k2,3", 'k3,"4\n5",6', "k4")
    assert frame.get_column("b").to_list() == [3, None, 6, None]
    assert "line 3 has 2 cells instead of 3" in frame.notes[0]
    assert not read("id,a,b", "k1,2,", "k2,3,4").notes  # an empty cell is one
    assert not read("id,a,b", "k1,2,3", "", "k2,3,4").notes
    for lines, line in ((["k1,2,3", "k2,3,4,5"], "line 3 has 4 cells"), (["k1,2,3,", "k2,3,4,"], "line 2 has 4 cells")):
        with pytest.raises(DataError, match=rf"t\.csv: {line}, and the header 3; put a cell that contains"):
            read("id,a,b", *lines)


NAMES = st.lists(st.text("abcdefgh_ .", min_size=1, max_size=6).map(str.strip).filter(bool), min_size=2, max_size=5, unique=True)


@given(data=st.data(), separator=st.sampled_from([",", ";", "\t", "|"]), name=st.sampled_from(["t.csv", "t.tsv"]))
def test_the_separator_of_ragged_lines_is_the_one_that_cuts_the_header(tmp_path_factory, data, separator, name):
    """Lines without their last cells, with every other separator in their text, do not confuse the reader."""
    names = data.draw(NAMES)
    cell = st.text("".join({*",;\t|xyz1"} - {separator}), min_size=1, max_size=8).map(lambda text: f"x{text}x")
    rows = data.draw(st.lists(st.lists(cell, min_size=1, max_size=len(names)), min_size=1, max_size=8))
    path = tmp_path_factory.mktemp("ragged") / name
    path.write_text("".join(f"{separator.join(row)}\n" for row in (names, *rows)))
    table = read_table(TableConfig(path=path, missing=[]))
    assert table.columns == names
    assert table.collect().rows() == [(*row, *[None] * (len(names) - len(row))) for row in rows]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("above", ["Report of 2024", "# exported by hand", "Report of 2024\n\nBranch: all"])
def test_lines_above_the_header_are_told_of(tmp_path, separator, above):
    lines = "".join(f"k{number}{separator}{number}{separator}a\n" for number in range(20))
    with pytest.raises(DataError, match=r"most lines have more cells between .* remove what is above the header"):
        read(tmp_path, f"{above}\nid{separator}x{separator}z\n{lines}")


def test_rows_named_by_r_and_separators_behind_the_last_column_are_told_of(tmp_path):
    for line in ("{0},k{0},2", "k{0},2,"):
        with pytest.raises(DataError, match=r"line 2 has 3 cells, and the header 2; most lines .* give each column a name"):
            read(tmp_path, "id,x\n" + "".join(line.format(number) + "\n" for number in range(5)))


@pytest.mark.parametrize("cell", [' "red, dark"', "'red, dark'", '\t"red, dark"'])
def test_quotes_that_are_not_the_first_character_of_a_cell_are_told_of(tmp_path, cell):
    with pytest.raises(DataError, match="in double quotes, as its first and last character"):
        read(tmp_path, "id,x,z\n" + f"k,1,{cell}\n" * 5)


@pytest.mark.parametrize("others", ["", "?", "7"])
def test_numbers_that_may_be_codes_are_said(tmp_path, others):
    """12E4 is an article number in one table, and 120,000 in another. A message always says which was assumed."""
    table = TableConfig(path=tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(
        "id,a,b\n" + "".join(f"{key},{cell},2.0\n" for key, cell in zip("xyz", ("12E4", "3e5", others), strict=True))
    )
    frame = read_table(table)
    assert frame.get_column("a").to_list()[:2] == [120_000, 300_000]
    assert [
        "12E4 are read as numbers, here 120000" in note and "column 'a';" in note for note in frame.notes if "120000" in note
    ] == [True]
    assert read_table(table, text=("a",)).get_column("a").to_list()[:2] == ["12E4", "3e5"]
    (tmp_path / "t.csv").write_text("id,a\nx,1.2e5\ny,3e+05\nz,1e-05\n4,2e5\n")  # a fraction says that they are numbers
    assert not read_table(table).notes


@pytest.mark.parametrize("word", ["inf", "-Infinity", "INF"])
@pytest.mark.parametrize("mark", ["1", "?"])
def test_infinite_numbers_are_never_taken_for_missing_ones(tmp_path, word, mark):
    cells = [*map(str, range(30)), word, mark]
    (tmp_path / "t.csv").write_text("id,a\n" + "".join(f"k,{cell}\n" for cell in cells))
    frame = read_table(TableConfig(path=tmp_path / "t.csv"))
    assert abs(frame.get_column("a")[30]) == float("inf")


@pytest.mark.parametrize("twin", ["gro\u0308\u00dfe", "gr\u00f6\u200b\u00dfe", "gr\u00f6\ufeff\u00dfe"])
@pytest.mark.parametrize("way", ["csv", "parquet"])
def test_a_column_whose_name_only_looks_like_the_one_that_is_asked_for_is_named_by_its_codes(twin, way, tmp_path):
    """One's own keyboard has other letters than a file from another system."""
    asked, frame = "gr\u00f6\u00dfe", pl.DataFrame({twin: [1.0, 2.0], "id": ["a", "b"]})
    path = tmp_path / f"t.{way}"
    frame.write_csv(path) if way == "csv" else frame.write_parquet(path)
    table = read_table(TableConfig(path=path))
    with pytest.raises(DataError) as caught:
        require_named(table, asked, use="feature")
    assert f"{twin!a} looks the same but has other character codes" in str(caught.value)
    both = frame.with_columns(pl.col(twin).alias(asked))
    both.write_csv(path) if way == "csv" else both.write_parquet(path)
    with pytest.raises(DataError, match="look the same but have different character codes; rename"):
        read_table(TableConfig(path=path))


def test_categories_that_differ_in_spaces_case_or_codes_alone_are_said():
    column = pl.Series("city", ["Bonn", "Bonn ", " bonn", "K\u00f6ln", "Ko\u0308ln", None, "Bern"])
    assert text_warning(column).startswith(
        "column 'city': 3 of its 6 distinct cells differ from another one only in spaces, case"
    )
    assert text_warning(pl.Series("city", ["Bonn", "Bern", None])) is None


@pytest.mark.parametrize("cell", ["\u201cBonn\u201d", "\u201eBonn\u201c", "\u00abBonn\u00bb", "'Bonn'"])
def test_categories_in_quotes_that_a_csv_does_not_know_are_said(cell):
    column = pl.Series("city", ["Bonn", cell, "Bern", "5'", '5"', "'s-Hertogenbosch"])
    assert text_warning(column).startswith(
        "column 'city': 1 of its 6 distinct cells differ from another one only in spaces, case, quotes"
    )


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ("string,VARCHAR,int", ["name", "city"]),
        ("text,character varying(20),double", ["name", "city"]),
        ("Ada,Ulm,3", []),
        ("text,Ulm,3", []),
        ("text,Ulm,int", ["name"]),
    ],
)
def test_a_row_of_type_names_below_the_header_is_said_of_text_too(types, said, tmp_path):
    rows = "".join(f"n{row},{('Ulm', 'Bonn')[row % 2]},{row}\n" for row in range(30))
    (tmp_path / "t.csv").write_text(f"name,city,age\n{types}\n{rows}")
    lines = [note for note in read_table(TableConfig(path=tmp_path / "t.csv")).notes if "types below the header" in note]
    assert [name for name in ("name", "city", "age") if any(repr(name) in line for line in lines)] == said


@pytest.mark.parametrize("mark", ["?", "n/a", "k.A.", "unknown", "\u2013"])
@pytest.mark.parametrize(("named", "categories", "noted"), [({}, 3, True), ({"x": []}, 3, False), ({"x": ["MARK"]}, 2, False)])
def test_a_mark_among_words_stays_a_value_and_is_said_until_the_party_says_what_it_is(
    tmp_path: Path, mark: str, named: dict[str, list[str]], categories: int, noted: bool
) -> None:
    (tmp_path / "t.csv").write_text("id,x\n" + "".join(f"k{row},{('red', 'green', mark)[row % 3]}\n" for row in range(30)))
    named = {name: [mark if word == "MARK" else word for word in words] for name, words in named.items()}
    table = read_table(TableConfig(path=str(tmp_path / "t.csv"), missing_in=named))
    assert table.get_column("x").drop_nulls().n_unique() == categories
    says = [note for note in table.notes if "may mean a missing cell" in note]
    assert len(says) == noted
    assert all(f"{mark!r} in column 'x'" in note and f"table.missing_in: {{x: [{mark!r}]}}" in note for note in says)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=30), st.booleans(), st.sampled_from(["", ".5"]))
def test_numbers_are_parted_as_in_india_too(tmp_path_factory, numbers, devanagari, fraction):
    """12,34,567 is a number, also beside 1,234 and 12: before the last three digits commas separate two each."""

    def parted(number):
        rest, last = divmod(number, 1000)
        pairs = []
        while rest > 99:
            rest, pair = divmod(rest, 100)
            pairs.insert(0, f"{pair:02}")
        return ",".join([str(rest), *pairs, f"{last:03}"]) if rest else str(last)

    cells = [f"{parted(number)}{fraction}" for number in [*numbers, 1_234_567]]
    if devanagari:
        cells = [cell.translate({ord("0") + digit: 0x966 + digit for digit in range(10)}) for cell in cells]
    path = tmp_path_factory.mktemp("lakhs") / "t.csv"
    path.write_text("id\tamount\n" + "".join(f"{row}\t{cell}\n" for row, cell in enumerate(cells)), encoding="utf-8")
    read_back = read_table(TableConfig(path=path, separator="\t")).get_column("amount")
    assert read_back.to_list() == [number + float(fraction or 0) for number in [*numbers, 1_234_567]]


@pytest.mark.parametrize("cell", ["1,2,345", "12,345,67", "1,23,45", "0,12,345", "1,234,56,789"])
def test_commas_that_part_otherwise_are_no_number(tmp_path, cell):
    column = read(tmp_path, f"id\tamount\n1\t{cell}\n2\t7.5\n", separator="\t").get_column("amount")
    assert column.dtype == pl.String


XLSX = b"PK\x03\x04\x14\x00\x06\x00\xff\xfe\x80"
OTHER_KINDS = {
    "a workbook": (XLSX, "a workbook or another packed file"),
    "an old workbook": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "an old workbook"),
    "a packed workbook": (gzip.compress(XLSX), "packed, and holds a workbook"),
    "Parquet": (b"PAR1\x15\x04\xff\xfe\x80", "is a Parquet file"),
    "packed Parquet": (gzip.compress(b"PAR1\x15\x04\xff\xfe\x80"), "packed, and holds a Parquet file"),
    "Arrow": (b"ARROW1\0\0" + bytes(99), "an Arrow file"),
    "SQLite": (b"SQLite format 3\0" + bytes(99), "an SQLite database; read it by table.query"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00" + bytes(range(99)), "compressed, but not by gzip"),
    "a page": (b"\n<!DOCTYPE html>\n<html><table><tr><td>id</td></tr></table></html>\n", "a web page"),
    "JSON": (b'[{"id": "a", "x": 1},\n {"id": "b", "x": 2}]\n', "JSON"),
    "lines of JSON": (b'{"id": "a", "x": 1}\n{"id": "b", "x": 2}\n', "JSON"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n", "git lfs pull"),
}  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_file_of_another_kind_under_a_table_s_name_is_called_by_its_kind(tmp_path, kind, ending):
    content, said = OTHER_KINDS[kind]
    if (kind, ending) == ("Parquet", "parquet"):
        said = "cannot be read"
    path = tmp_path / f"t.{ending}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_table(TableConfig(path=path))


@pytest.mark.parametrize("header", ["[a],{b}", '"<id>",x', "version,id", "ORC,id", "PDF,id", "{a},b"])
def test_a_header_that_only_looks_like_another_kind_is_read(tmp_path, header):
    assert read(tmp_path, f"{header}\n1,2\n".encode()).height == 1


@pytest.mark.parametrize(
    ("spelt", "mend"),
    [
        ("{0:02}/12/2024", 'name their format by `dates: {{x: "%d/%m/%Y"}}` in the party file'),
        ("12/{0}/24", 'name their format by `dates: {{x: "%m/%d/%y"}}` in the party file'),
        ("{0}-Jan-2024 {1}:05 PM", '`dates: {{x: "%d-%b-%Y %I:%M %p"}}`'),
        (
            "{1}/{1}/20{0:02}",
            'by `dates: {{x: "%d/%m/%Y"}}` or by `dates: {{x: "%m/%d/%Y"}}` in the party file (all cells fit both)',
        ),
        ("2024-{0:03}", '`dates: {{x: "%Y-%j"}}`'),
        ("202401{0:02}T12000{1}", '`dates: {{x: "%Y%m%dT%H%M%S"}}`'),
        ("2024-W{0:02}", "write all in one format, and name it in the party file"),
    ],
)
def test_dates_are_proposed_as_they_are_written(tmp_path, spelt, mend):
    """The proposed setting reads the column."""
    column, _ = column_of(tmp_path, [spelt.format(number, number % 9 + 1) for number in range(1, 28)])
    assert mend.format() in text_warning(column)
    for words in likely_formats(column):
        dated = with_dates(column.to_frame(), {"x": words}).get_column("x")
        assert dated.dtype.is_temporal()
        assert dated.null_count() == 0
