"""A column that nothing asks for never stops the reading of a table, whatever it holds, with any reader."""

import datetime
import sqlite3
from contextlib import closing
from decimal import Decimal

import numpy as np
import polars as pl
import postgres
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick import simulate
from tallystick.config.party import parse_party
from tallystick.errors import DataError
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables import parquet, rows
from tallystick.tables.encoder import Encoder, feature_columns
from tallystick.tables.frame import as_frame
from tallystick.tables.profile import profile
from tallystick.tables.table import read_party_table, read_rows

IDS, NUMBERS = ["a", "b", "c"], [1.5, 2.5, 4.0]
ODD = {
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "map of dictionaries": pa.array([[("a", "b")]] * 3, pa.map_(pa.string(), pa.string())),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 3),
    "lists of intervals": pa.array([[pa.MonthDayNano([1, 2, 3])]] * 3),
    "union": pa.UnionArray.from_dense(
        pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([1, 2, 3]), pa.array(["x"])]
    ),
    "long decimals": pa.array([Decimal(10) ** 60] * 3, pa.decimal256(70, 0)),
    "24:00": pa.array([86_400_000_000, 1, None], pa.time64("us")),
    "records": pa.array([{"a": 1, "b": [None]}] * 3),
    "bytes": pa.array([b"\xff\x00"] * 3),
    "lists": pa.array([[1, 2], None, []]),
}
ONLY_ARROW = {"interval", "lists of intervals", "union", "24:00"}  # Parquet has no such type, or its writer refuses the cell


def party_of(table, folder, *, asks):
    """Return a party file that drops the column `x`, or that names its features and no `x`."""
    without_x = {"drop": ["x"]} if asks == "drop" else {"features": {"numeric": ["y"], "categorical": []}}
    return parse_party({"party": "bank", "table": table, "keys": {"id": "id"}, **without_x}, folder=folder)


def require_the_others(frame, party):
    assert frame.get_column("id").to_list() == IDS
    assert frame.get_column("y").to_list() == NUMBERS
    assert feature_columns(frame, party).numeric == ("y",)
    profile(frame, party)
    encoder = Encoder.of_party(frame, party, np.arange(3), numbers="plain")
    assert [column.name for column in encoder.numeric] == ["y"]
    return encoder


@pytest.mark.parametrize("asks", ["drop", "features"])
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("way", ["arrow", "parquet", "parquet files", "delta"])
def test_a_column_of_any_type_of_arrow_that_nothing_asks_for_is_passed_over(kind, way, asks, tmp_path):
    if kind in ONLY_ARROW and way != "arrow":
        pytest.skip("no file holds it")
    table = pa.table({"id": IDS, "x": ODD[kind], "y": NUMBERS})
    if way == "arrow":
        party = party_of({"path": "t.parquet"}, tmp_path, asks=asks)
        require_the_others(as_frame(table, source="bank", asks_for=party.asks_for), party)
        return
    party = party_of({"path": {"parquet": "t.parquet"}.get(way, "t")}, tmp_path, asks=asks)
    (tmp_path / "t").mkdir()
    if way == "delta":
        deltalake = pytest.importorskip("deltalake")
        if kind == "long decimals":
            pytest.skip("the format has none")
        deltalake.write_deltalake(tmp_path / "t", table)
    elif way == "parquet":
        pq.write_table(table, tmp_path / "t.parquet")
    else:  # of which another file has something else there
        pq.write_table(table.slice(0, 2), tmp_path / "t" / "1.parquet")
        pq.write_table(pa.table({"id": IDS[2:], "y": NUMBERS[2:], "x": ["?"]}), tmp_path / "t" / "2.parquet")
    encoder = require_the_others(read_party_table(party), party)
    read_rows(party.table, party, trained=encoder)


DUCKDB = {
    "map": "MAP{'a': 1}",
    "interval": "INTERVAL 3 DAY",
    "zoned time of day": "TIMETZ '10:00:00+02'",
    "unsigned": "3::UHUGEINT",
    "24:00": "TIME '24:00'",
    "union": "union_value(n := 1)",
    "lists of intervals": "[INTERVAL 3 DAY]",
}


@pytest.mark.parametrize("asks", ["drop", "features"])
@pytest.mark.parametrize("kind", DUCKDB)
def test_a_column_of_any_type_of_duckdb_that_nothing_asks_for_is_passed_over(kind, asks, tmp_path):
    query = f"SELECT id, {DUCKDB[kind]} AS x, y FROM (VALUES ('a', 1.5), ('b', 2.5), ('c', 4.0)) AS rows(id, y)"
    party = party_of({"query": query.replace("1.5", "1.5::DOUBLE")}, tmp_path, asks=asks)
    require_the_others(read_party_table(party), party)
    needed = parse_party({"party": "bank", "table": {"query": query}, "keys": {"id": "id"}}, folder=tmp_path)
    with pytest.raises(DataError, match="column 'x' has "):
        read_party_table(needed)


POSTGRES = {
    "record": ("row(1, 'a')", "record"),
    "lists of records": ("array[row(1, 'a')]", "_record"),
    "row of a table": ("(select owned from owned)", "owned"),
    "interval": ("interval '1 day'", "interval"),
    "lists of intervals": ("array[interval '1 day']", "_interval"),
    "money": ("5::money", "money"),
    "range": ("'[1,5)'::int4range", "unnamed"),
    "point": ("'(1,2)'::point", "point"),
    "network": ("'10.0.0.1'::inet", "inet"),
    "24:00": ("time '24:00'", "time"),
    "bits": ("B'101'", "bit"),
    "document": ("'<a/>'::xml", "xml"),
}


@pytest.fixture(scope="module")
def address():
    pytest.importorskip("adbc_driver_postgresql", reason="no driver (pip install 'tallystick[postgres]')")
    with pytest.MonkeyPatch.context() as patch, postgres.server() as address:
        patch.setenv("PGPASSWORD", postgres.PASSWORD)
        import adbc_driver_postgresql.dbapi as dbapi

        with dbapi.connect(f"postgresql://me@{address}", autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("create table owned (a int, b text)")
            cursor.execute("insert into owned values (1, 'x')")
        yield address


@pytest.mark.parametrize("kind", POSTGRES)
def test_a_column_of_any_type_of_postgresql_is_refused_by_name_or_passed_over(kind, address, tmp_path):
    """The driver gives up a whole table for one record, and says that a read failed, which looked like a lost connection."""
    cell, named = POSTGRES[kind]
    query = (
        f"select id, {cell} as x, y from (values ('a', 1.5::float8), ('b', 2.5), ('c', 4)) as rows(id, y), pg_database "
        "where datname = 'postgres' -- and no other\n;"
    )
    table = {"query": query, "database": f"postgresql://me@{address}"}
    for asks in ("drop", "features"):
        party = party_of(table, tmp_path, asks=asks)
        require_the_others(read_party_table(party), party)
    needed = parse_party({"party": "bank", "table": table, "keys": {"id": "id"}}, folder=tmp_path)
    with pytest.raises(DataError, match=f"{address}.*: column 'x' has PostgreSQL type {named}"):
        read_party_table(needed)


def test_what_a_server_answers_late_is_no_lost_connection(address, tmp_path):
    query = "select id, 1 / (id - 2) as x from generate_series(1, 3) as rows(id)"
    party = party_of({"query": query, "database": f"postgresql://me@{address}"}, tmp_path, asks="drop")
    with pytest.raises(DataError, match=r"the query failed: .*division by zero"):
        read_party_table(party)


def test_a_store_of_rows_passes_over_what_it_does_not_ask_for(address):
    from tallystick.config.serving import Postgres
    from tallystick.scoring.stores.postgres import PostgresDatabase
    from tallystick.scoring.stores.queried import KEY, QueriedStore

    query = "select id as key, row(1, 'a') as x, interval '1 day' as z from (values (1.50::numeric), (2)) as rows(id)"
    config = Postgres.model_validate(
        {
            "method": "postgres",
            "query": f"{query} where id = any($1::numeric[])",
            "database": f"postgresql://me@{address}",
        }
    )
    store = QueriedStore(PostgresDatabase(config, text=(KEY,)), None, {})
    try:
        found: StoredRows = store.find([b"2", b"1.5", b"7"])
        assert found.is_found_B.tolist() == [True, True, False]
    finally:
        store.close()


CSV = {
    "points that may be thousands separators": ["8.505", "410", "7"],
    "commas that may be either": ["1,234", "2,345", "7,000"],
    "other numbers than the rest": ["1,5", "2,5", "3,25"],
    "huge whole numbers": ["1" * 400, "2", "3"],
}


@pytest.mark.parametrize("asks", ["drop", "features"])
@pytest.mark.parametrize("kind", CSV)
def test_a_column_of_a_csv_that_nothing_asks_for_is_passed_over(kind, asks, tmp_path):
    lines = [f"{key};{cell};{number}" for key, cell, number in zip(IDS, CSV[kind], NUMBERS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["id;x;y", *lines]))
    party = party_of({"path": "t.csv"}, tmp_path, asks=asks)
    frame = read_party_table(party)
    require_the_others(frame, party)
    assert frame.notes == ()


@pytest.mark.parametrize("first", ["with", "without"])
def test_files_may_differ_in_a_column_that_nothing_asks_for(first, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / f"{'1' if first == 'with' else '2'}.csv").write_text("id,x,y\na,?,1.5\n")
    (tmp_path / "t" / f"{'2' if first == 'with' else '1'}.csv").write_text("y,id\n2.5,b\n4.0,c\n")
    party = party_of({"path": "t"}, tmp_path, asks="drop")
    frame = read_party_table(party)
    assert sorted(zip(frame.get_column("id"), frame.get_column("y"), strict=True)) == [("a", 1.5), ("b", 2.5), ("c", 4.0)]


def test_a_column_without_a_name_may_be_dropped_by_its_place(tmp_path):
    (tmp_path / "t.csv").write_text("id,,y\na,?,1.5\nb,!,2.5\nc,?,4.0\n")
    values = {"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "id"}, "drop": ["column 2"]}
    party = parse_party(values, folder=tmp_path)
    require_the_others(read_party_table(party), party)


@pytest.mark.parametrize("ending", ["announced", "unpacked", "of one row"])
def test_text_too_long_for_this_machine_that_nothing_asks_for_is_passed_over(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "machine_memory", lambda: 2**16)
    if ending == "of one row":
        monkeypatch.setattr(rows, "machine_memory", lambda: 2**30)
        monkeypatch.setattr(parquet, "TEXT_AT_A_TIME", 2**10)
    text = {"announced": [f"{row}" * 10_000 for row in "123"], "unpacked": ["x" * 6000] * 3, "of one row": ["x" * 1100] * 3}
    table = pa.table({"id": IDS, "x": text[ending], "y": NUMBERS})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", use_dictionary=ending != "announced")
    party = party_of({"path": "t.parquet"}, tmp_path, asks="drop")
    require_the_others(read_party_table(party), party)
    with pytest.raises(DataError, match=r"column 'x' (announces|unpacks)|a row holds more"):
        read_party_table(parse_party({"party": "bank", "table": {"path": "t.parquet"}, "keys": {"id": "id"}}, folder=tmp_path))


PANDAS = {
    "several types": lambda _: [1, "a", None],
    "objects": lambda _: [object()] * 3,
    "complex numbers": lambda _: [1 + 2j, 3, 4],
    "sparse": lambda pd: pd.arrays.SparseArray([1, 0, 0]),
    "beyond 64 bits": lambda _: [2**70, 1, 2],
}


@pytest.mark.parametrize("kind", PANDAS)
def test_a_column_of_pandas_that_nothing_asks_for_is_passed_over(kind, tmp_path):
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"id": IDS, "x": PANDAS[kind](pd), "y": NUMBERS})
    party = party_of({"path": "t.parquet"}, tmp_path, asks="drop")
    require_the_others(as_frame(table, source="bank", asks_for=party.asks_for), party)
    assert "x" in table.columns
    assert table["x"].notna().any()  # the caller's table stays as it was
    with pytest.raises(DataError, match="x"):
        as_frame(table, source="bank")


def test_a_column_of_sqlite_that_nothing_asks_for_is_passed_over(tmp_path):
    pytest.importorskip("adbc_driver_sqlite")
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE rows (id TEXT, x, y REAL)")
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", zip(IDS, [1, b"\xff", "a"], NUMBERS, strict=True))
        connection.commit()
    party = party_of({"query": "SELECT * FROM rows", "database": "sqlite:t.db"}, tmp_path, asks="drop")
    require_the_others(read_party_table(party), party)


def test_what_orders_or_sums_up_rows_is_asked_for_although_it_is_dropped(tmp_path):
    values = {
        "party": "bank",
        "keys": {"id": "id"},
        "table": {"path": "t.csv"},
        "label": "y",
        "weight": "w",
        "time": "t",
        "dates": {"d": "%d.%m.%Y"},
        "repeats": {"latest": "l", "aggregate": {"s": "sum"}},
        "report": {"subgroups": ["g"]},
        "overlap_groups": "o",
        "sequences": {"q": {"target": "i"}},
        "vectors": ["v"],
        "drop": ["d", "l", "s", "g", "o", "x"],
    }
    party = parse_party(values, folder=tmp_path)
    assert all(party.asks_for(name) for name in ("id", "y", "w", "t", "d", "l", "s", "g", "o", "q", "i", "v", "other"))
    assert not party.asks_for("x")
    listed = parse_party(
        {key: value for key, value in values.items() if key != "drop"} | {"features": {"numeric": ["n"]}}, folder=tmp_path
    )
    assert listed.asks_for("n")
    assert listed.asks_for("s")
    assert not listed.asks_for("other")


def test_simulate_passes_over_a_dropped_column():
    from tiny import contract_values, tables

    frames = tables(("bank", "shop"), rows=60)
    arrow = frames["bank"].to_arrow()
    intervals = pa.array([pa.MonthDayNano([1, 2, 3])] * len(arrow))
    columns = {
        "bank": {"keys": {"id": "id"}, "label": "y", "drop": ["wait"]},
        "shop": {"keys": {"id": "id"}},
    }
    contract = contract_values(("bank", "shop"), training__epochs=1)
    result = simulate(contract, {**frames, "bank": arrow.append_column("wait", intervals)}, columns)
    assert result.training is not None


def test_dates_and_times_of_a_dropped_column_stay(tmp_path):
    """`check` shows what can be read, as before."""
    frame = pl.DataFrame({"id": IDS, "x": [datetime.date(2024, 1, day) for day in (1, 2, 3)], "y": NUMBERS})
    frame.write_parquet(tmp_path / "t.parquet")
    party = party_of({"path": "t.parquet"}, tmp_path, asks="drop")
    shown = {column.name: (column.type, column.use) for column in profile(read_party_table(party), party).columns}
    assert shown["x"] == ("Date", "unused")


@pytest.mark.parametrize(
    ("amounts", "idle", "read"),
    [
        (("801.200", "35.000"), ("0,5", "0,25"), [801200, 35000]),
        (("8.505", "410"), ("0,5", "0,25"), [8505, 410]),
        (("1,234", "7,500"), ("0.5", "0.25"), [1234, 7500]),
        (("801.200", "35.000"), ("0.5", "0.25"), [801.2, 35]),
        (("801.200", "35.500"), ("1.5", "2,5"), [801.2, 35.5]),  # useless text
    ],
)
@pytest.mark.parametrize("more", [{"drop": ["share"]}, {"features": {"numeric": ["amount"]}}], ids=["dropped", "not listed"])
def test_a_column_that_nothing_asks_for_tells_the_decimal_sign_where_no_other_does(amounts, idle, read, more, tmp_path):
    rows = "".join(f"{row};{amount};{share}\n" for row, (amount, share) in enumerate(zip(amounts, idle, strict=True)))
    (tmp_path / "t.csv").write_text(f"id;amount;share\n{rows}")
    party = parse_party({"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "id"}, **more}, folder=tmp_path)
    assert read_party_table(party).get_column("amount").to_list() == read
