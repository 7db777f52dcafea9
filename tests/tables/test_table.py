"""Tables: every format gives the same rows, and an error never shows a password or a cell."""

import gzip
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from lanes import short_lane_of
from pydantic import SecretStr

from tallystick.config.party import parse_party
from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.tables.table import read_party_table, read_table

FRAME = pl.DataFrame({"id": ["007", "8"], "x": [1.5, None], "c": ["a", None]})


def table(folder: Path, **keys: Any) -> TableConfig:
    party = parse_party({"party": "p", "table": keys}, folder=folder)
    assert party.table is not None
    return party.table


def write_all(folder: Path) -> None:
    FRAME.write_parquet(folder / "t.parquet")
    FRAME.write_csv(folder / "t.csv")
    FRAME.write_csv(folder / "t.tsv", separator="\t")
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    with duckdb.connect(str(folder / "t.db")) as connection:
        connection.sql("create table t as select * from values ('007', 1.5::double, 'a'), ('8', null, null) v(id, x, c)")


@pytest.mark.parametrize(
    "keys",
    [
        {"path": "t.parquet"},
        {"path": "t.csv"},
        {"path": "t.csv.gz"},
        {"path": "t.tsv"},
        {"query": "select * from 't.parquet'"},
        {"query": "select * from t order by id", "database": "duckdb:t.db"},
    ],
)
def test_every_source_gives_the_same_rows(tmp_path: Path, keys: dict[str, str]) -> None:
    write_all(tmp_path)
    assert read_table(table(tmp_path, **keys), text=["id"]).collect().equals(FRAME)


def test_words_for_null_in_text_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\nNA,1\n,NaN\nx,null\n", encoding="utf-8")
    frame = read_table(table(tmp_path, path="t.csv")).collect()
    assert frame.to_dict(as_series=False) == {"a": [None, None, "x"], "b": [1, None, None]}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no such file"), (b"", "is empty"), (b"a,b\n", "has no rows"), (b"a,b\n1,2,3\n", "line 2 has 3 cells")],
)
def test_unusable_csv(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(table(tmp_path, path="t.csv"))
    assert str(tmp_path / "t.csv") in str(caught.value)


def test_unusable_parquet(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        read_table(table(tmp_path, path="t.parquet"))
    FRAME.head(0).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: has no rows"):
        read_table(table(tmp_path, path="t.parquet"))


@pytest.mark.parametrize("step", short_lane_of([10, 3], 1))
def test_a_flipped_bit_in_parquet_is_an_error_or_a_table(step: int, tmp_path: Path) -> None:
    """Never the end of the process, which Polars' reader makes of some. In each tenth byte another bit is flipped."""
    FRAME.write_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    ended = set()
    for place in range(0, len(content), step):
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << place * 5 % 8
        (tmp_path / "t.parquet").write_bytes(spoilt)
        try:
            ended.add(type(read_table(table(tmp_path, path="t.parquet")).collect()))
        except DataError as error:
            ended.add(type(error))
    assert ended == {pl.DataFrame, DataError}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"query": "select * from nothing"}, "the query failed"),
        ({"query": "selec 1"}, "the query failed"),
        ({"query": "create table t(a int)"}, "gives no table|has no rows"),
        ({"query": "select 1 where false"}, "has no rows"),
        ({"query": "select 1 as a, 2 as a"}, r"^table\.query: more than one column is called 'a'"),
        ({"query": "select 1", "database": "duckdb:none.db"}, r"none\.db: there is no such database file"),
    ],
)
def test_unusable_query(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(table(tmp_path, **keys))


def test_a_database_file_is_opened_read_only(tmp_path: Path) -> None:
    write_all(tmp_path)
    with pytest.raises(DataError, match="read-only"):
        read_table(table(tmp_path, query="drop table t", database="duckdb:t.db"))


def test_postgres_that_cannot_be_reached_never_shows_the_password(tmp_path: Path) -> None:
    # Nothing listens on port 1.
    (tmp_path / "password").write_text("hunt@er2\n")
    pytest.importorskip("adbc_driver_postgresql", reason="no driver (pip install 'tallystick[postgres]')")
    with pytest.raises(DataError, match="cannot be reached") as caught:
        read_table(table(tmp_path, query="select 1", database="postgresql://me@127.0.0.1:1/db", password={"file": "password"}))
    assert "me@127.0.0.1" in str(caught.value)
    assert "hunt" not in str(caught.value)


def test_postgres_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(DataError, match=r"run: pip install 'tallystick\[postgres\]'"):
        read_table(TableConfig(query="select 1", database=SecretStr("postgresql://me@127.0.0.1:1/db")))


def test_absent_columns_are_named_with_the_closest(tmp_path: Path) -> None:
    write_all(tmp_path)
    party = parse_party({"party": "p", "table": {"path": "t.csv"}, "keys": {"k": "idd"}}, folder=tmp_path)
    with pytest.raises(DataError, match="key column 'idd' is not in the table; did you mean id"):
        read_party_table(party)


@pytest.mark.parametrize("path", ["table", "table/data"])
def test_an_iceberg_table_and_its_bare_files_are_refused_with_a_way(path, tmp_path):
    (tmp_path / "table" / "metadata").mkdir(parents=True)
    (tmp_path / "table" / "metadata" / "v1.metadata.json").touch()
    (tmp_path / "table" / "data").mkdir()
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "table" / "data" / "part-0.parquet")
    with pytest.raises(DataError, match=r"an Iceberg table, which is not read here; have its engine export it as Parquet, or"):
        read_table(TableConfig(path=tmp_path / path))
