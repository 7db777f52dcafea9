"""PostgreSQL with a real server: types, passwords, a read-only role, and a job whose table is there."""

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from postgres import PASSWORD, server
from tiny import tables

from tallystick.config.party import parse_party
from tallystick.errors import DataError
from tallystick.tables.table import read_table

URL_PASSWORD = PASSWORD.replace(" ", "%20").replace("@", "%40")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("adbc_driver_postgresql", reason="no driver (pip install 'tallystick[postgres]')")
    with server() as address:
        yield address


def write(address: str, *statements: str) -> None:
    import adbc_driver_postgresql.dbapi as dbapi

    with dbapi.connect(f"postgresql://me:{URL_PASSWORD}@{address}", autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def read(address: str, query: str, *, password: str | None = None, text: tuple[str, ...] = ()) -> pl.DataFrame:
    table = {"query": query, "database": f"postgresql://me@{address}"}
    given = {"password": {"command": ["printf", "%s", password]}} if password is not None else {}
    values = {"party": "p", "table": table | given}
    table = parse_party(values, folder=Path()).table
    assert table is not None
    return read_table(table, text=text).collect()


def test_types_arrive_as_what_they_are(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    write(
        address,
        "create table typed (id uuid, n numeric(20,2), k numeric, i int, f double precision, b boolean, d date, "
        "t timestamptz, s text)",
        "insert into typed values ('6ecd8c99-4036-403d-bf84-cf8400f67836', 10.20, 12345678901234567890, 7, 0.1, true, "
        "'2024-02-29', '2024-02-29 13:05+02', 'ä')",
        "insert into typed (s) values (null)",
    )
    found = read(address, "select * from typed", text=("k",))
    assert found.row(0, named=True) == {
        "id": "6ecd8c99-4036-403d-bf84-cf8400f67836",
        "n": 10.2,
        "k": decimal.Decimal(12345678901234567890),
        "i": 7,
        "f": 0.1,
        "b": True,
        "d": datetime.date(2024, 2, 29),
        "t": datetime.datetime(2024, 2, 29, 11, 5, tzinfo=datetime.UTC),
        "s": "ä",
    }
    assert found.row(1) == (None,) * 9


def test_types_that_arrow_holds_otherwise_keep_their_values(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spaces that fill up a char(n) are no part of the value, and an object's number has no sign."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    found = read(address, "select 'k1'::char(10) as id, ' k1 '::text as s, 4000000000::oid as o, null::oid as n")
    assert found.row(0) == ("k1", " k1 ", 4_000_000_000, None)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from nothing", 'the query failed: ProgrammingError.*relation "nothing" does not exist'),
        ("selec 1", "the query failed.*syntax error"),
        ("select 1; select 2", "the query failed.*multiple commands"),
        ("create table forbidden (i int)", "the query failed.*read-only transaction"),
        ("select 1 as a, 2 as a", "more than one column is called 'a'"),
        ("select 1 as a where false", "has no rows"),
        ("select '1 day'::interval as wait", "column 'wait' has PostgreSQL type interval"),
        ("select 5::money as price", "column 'price' has PostgreSQL type money"),
        ("select '127.0.0.1'::inet as host", "column 'host' has PostgreSQL type inet"),
        ("select '24:00'::time as closes", "column 'closes' has PostgreSQL type time, .* 24:00"),
    ],
)
def test_unusable_queries(address: str, monkeypatch: pytest.MonkeyPatch, query: str, message: str) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(DataError, match=message):
        read(address, query)


def test_passwords_are_checked_and_never_shown(address: str) -> None:
    assert read(address, "select 1 as a", password=PASSWORD).rows() == [(1,)]
    with pytest.raises(DataError, match="cannot be reached: OperationalError") as caught:
        read(address, "select 1", password="guessed it")
    assert "guessed" not in str(caught.value)
    with pytest.raises(DataError, match="no password"):
        read(address, "select 1")


def test_a_job_whose_table_lies_in_postgres(address: str, monkeypatch: pytest.MonkeyPatch, lay_out_job: Any) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    frames = tables(("bank", "shop"), rows=300)
    bank = frames["bank"]
    kinds: dict[Any, str] = {pl.String: "text", pl.Float64: "double precision", pl.Int64: "bigint"}
    rows = ", ".join(str(row) for row in bank.iter_rows())
    write(
        address,
        f"create table bank ({', '.join(f'{name} {kinds[kind]}' for name, kind in bank.schema.items())})",
        f"insert into bank values {rows}",
    )
    assert read(address, "select * from bank").equals(bank)
    job = lay_out_job(frames=frames, training__epochs=1)
    monkeypatch.delenv("PGPASSWORD")
    (job.home("bank") / "password.txt").write_text(f"{PASSWORD}\n")
    database = {"database": f"postgresql://me@{address}", "password": {"file": "password.txt"}}
    job.change("bank", table={"query": "select * from bank", **database})
    (job.home("bank") / "table.parquet").unlink()
    ended = job.run_all()
    assert ended["bank"].found["steps"] > 0
    kept = "".join(path.read_text(errors="replace") for path in job.runs("bank")[0].rglob("*") if path.is_file())
    assert PASSWORD not in kept
    assert URL_PASSWORD not in kept
