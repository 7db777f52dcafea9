"""CSV as people write it: separators, encodings, dates, decimal commas, and tables in several files."""

import gzip
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.config.party import parse_party
from tallystick.data.delimited import NUMBERS, read_delimited
from tallystick.data.table import read_table
from tallystick.errors import ConfigError, DataError


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
    with pytest.raises(DataError, match=r"is not utf-8 text; name its encoding .* such as `encoding: windows-1252`"):
        read(tmp_path, raw, path=name)
    found = read(tmp_path, raw, path=name, encoding="windows-1252")
    assert ",".join(map(str, found.row(-1))) == content.splitlines()[-1]
    assert found.columns == content.splitlines()[0].split(",")
    with pytest.raises(DataError, match="is not utf-16 text"):
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
    with pytest.raises(DataError, match=r"column 'x' has commas that may be decimal signs or part thousands; say which"):
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
    with pytest.raises(DataError, match=r"t\.csv: column 'a' stands in the header more than once"):
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
    with pytest.raises(ConfigError, match=r"table\.separator: goes with path only"):
        read(tmp_path, None, path=None, query="select 1", separator=";")


def test_whole_numbers_of_more_digits_than_integers_hold_are_numbers(tmp_path: Path) -> None:
    first, second = 12345678901234567890123, "9" * 300
    found = read(tmp_path, f"id,a,b,c\n1,{first},1,{second}\n2,5,2,3\n")
    assert found.rows() == [(1, first, 1, float(second)), (2, 5, 2, 3.0)]
