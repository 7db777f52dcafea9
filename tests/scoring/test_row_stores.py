"""Rows found by key: a table, Redis and PostgreSQL return the same columns, and each says what it cannot do."""

import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import flight_server
import numpy as np
import polars as pl
import pytest
import torch

from tallystick.config.alignment import IntersectionConfig
from tallystick.config.party import FeatureColumns, SequenceConfig
from tallystick.config.serving import Adbc, Postgres, Redis
from tallystick.errors import ConfigError, StoreError
from tallystick.network.addresses import free_port
from tallystick.reading import validate
from tallystick.scoring.stores.adbc import AdbcDatabase
from tallystick.scoring.stores.boundary import Boundary
from tallystick.scoring.stores.cells import columns_read
from tallystick.scoring.stores.postgres import PostgresDatabase
from tallystick.scoring.stores.queried import QueriedStore
from tallystick.scoring.stores.redis import RedisStore
from tallystick.scoring.stores.table import Snapshot, TableStore
from tallystick.tables.encoder import Encoder
from tallystick.tables.keys import read_keys

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
import postgres

ROWS = 40
TABLE = pl.DataFrame(
    {
        "id": [f"id-{number}" for number in range(ROWS)],
        "x": [None if number == 7 else number / 3 for number in range(ROWS)],
        "whole": list(range(ROWS)),
        "kind": [["red", "green", None][number % 3] for number in range(ROWS)],
        "items": ["a b c"[: 1 + 2 * (number % 3)] for number in range(ROWS)],
    }
)
ENCODER = Encoder.fit(
    TABLE,
    FeatureColumns(numeric=("x", "whole"), categorical=("kind",)),
    np.arange(ROWS),
    sequences={"items": SequenceConfig(separator=" ", length=2)},
)
KEYS = [b"id-7", b"nobody", b"id-3", b"id-7", b"id-39"]


def snapshot(table=TABLE):
    keys = read_keys(table, columns={"id": "id"}, alignment=IntersectionConfig.model_validate({"keys": [{"name": "id"}]}))
    return Snapshot.of(table, keys, ENCODER)


def assert_same(found, expected):
    assert found.is_found_B.tolist() == expected.is_found_B.tolist()
    assert torch.equal(found.features_E.numeric_NF, expected.features_E.numeric_NF)
    assert torch.equal(found.features_E.categorical_NG, expected.features_E.categorical_NG)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    """A real server, which ends with the module."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here (apt-get install redis-server)")
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path_factory.mktemp("redis"))]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(10)


def redis_store(url):
    return RedisStore(Redis(method="redis", url=url, prefix="row:"), ENCODER, dict(TABLE.schema))


def test_redis_gives_what_the_table_gives_and_says_what_does_not_fit(redis_url):
    import redis

    client = redis.Redis.from_url(redis_url)
    for row in TABLE.to_dicts():
        client.set(f"row:{row['id']}", json.dumps(row))
    store = redis_store(redis_url)
    assert_same(store.find(KEYS), snapshot().find(KEYS))
    assert_same(store.find([b"nobody"]), snapshot().find([b"nobody"]))
    client.set("row:id-3", json.dumps({"x": "Mallory", "whole": 1, "kind": "red", "items": ""}))
    with pytest.raises(StoreError, match="column 'x'") as told:
        store.find([b"id-3"])
    assert "Mallory" not in str(told.value)
    client.set("row:id-3", json.dumps({"x": 1.0}))
    with pytest.raises(StoreError, match="column 'whole' is missing"):
        store.find([b"id-3"])
    client.set("row:id-3", '{"x": ' + "[" * 100_000)
    with pytest.raises(StoreError, match="is not a JSON object"):
        store.find([b"id-3"])
    client.set("row:id-3", "no JSON")
    with pytest.raises(StoreError, match="is not a JSON object"):
        store.find([b"id-3"])
    store.close()


def test_a_redis_that_is_not_there_is_said_within_its_time():
    began = time.monotonic()
    with pytest.raises(StoreError, match="does not answer"):
        redis_store(f"redis://127.0.0.1:{free_port()}/0").find(KEYS)
    assert time.monotonic() - began < 10


def test_postgres_gives_what_the_table_gives_and_is_called_again_after_a_broken_connection(tmp_path):
    with postgres.server() as address:
        url = f"postgresql://me:{quote(postgres.PASSWORD)}@{address}"
        import adbc_driver_postgresql.dbapi as dbapi

        with dbapi.connect(url) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("rows", TABLE.to_arrow(compat_level=pl.CompatLevel.oldest()))
            connection.commit()
        query = "SELECT id AS key, * FROM rows WHERE id = ANY($1)"
        (tmp_path / "password").write_text(postgres.PASSWORD)

        def store_of(query):
            values = {"method": "postgres", "database": f"postgresql://me@{address}", "query": query}
            config = Postgres.model_validate({**values, "password": {"file": str(tmp_path / "password")}})
            return QueriedStore(PostgresDatabase(config, text=["items"]), ENCODER, dict(TABLE.schema))

        store = store_of(query)
        assert_same(store.find(KEYS), snapshot().find(KEYS))
        assert_same(store.find([]), snapshot().find([]))
        with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'me'"
            )
            cursor.fetchall()
        assert_same(store.find(KEYS), snapshot().find(KEYS))
        bounded = Boundary(store, say=print)
        assert bounded.find([b"id-3", b"\xff\xfe", b"id\0-7", b"id-7", b"x" * 2000]).is_found_B.tolist() == [1, 0, 0, 1, 0]
        store.close()
        for query, why in {
            "SELECT id AS key, x FROM rows WHERE id = ANY($1)": "do not fit",
            "SELECT * FROM rows WHERE id = ANY($1)": 'no column "key"',
            "SELECT 'id-7' AS key, * FROM rows WHERE length($1::text) > 0": "several rows for one key",
            "DELETE FROM rows WHERE id = ANY($1) RETURNING id AS key": "SQLSTATE",
            "SELECT id AS key, rows.*, x FROM rows WHERE id = ANY($1)": "several columns 'x'",
            "SELECT id AS key, * FROM rows WHERE id = ANY($1) AND pg_sleep(30) IS NOT NULL": "SQLSTATE 57014",
        }.items():
            wrong = store_of(query)
            with pytest.raises(StoreError, match=why) as told:
                wrong.find(KEYS)
            assert "hunter" not in str(told.value)
            wrong.close()


@pytest.mark.parametrize("at", ["the call", "the query"])
def test_a_server_that_hangs_costs_its_time_and_no_more_and_is_called_anew(at, monkeypatch):
    """A stopped server, or a firewall that forgot the connection: nothing is answered, and nothing is closed."""
    pytest.importorskip("adbc_driver_postgresql")
    goes_on, called, closed = threading.Event(), [], []

    class Connection:
        def close(self):
            closed.append(self)

    def hang():
        called.append(at)
        if len(called) <= 3:
            goes_on.wait(60)

    def connect(_url, *, statement_s):
        if at == "the call":
            hang()
        return Connection()

    def ask(_connection, _query, *, text, keys, asks_for):
        if at == "the query":
            hang()
        return ["key", *TABLE.columns], [TABLE["id"].alias("key"), *TABLE]

    monkeypatch.setattr("tallystick.scoring.stores.postgres.connected", connect)
    monkeypatch.setattr("tallystick.scoring.stores.postgres.query_postgres", ask)
    monkeypatch.setattr("tallystick.scoring.stores.queried.CALL_S", 0.2)
    monkeypatch.setattr("tallystick.scoring.stores.queried.MOST_LEFT", 3)
    config = Postgres.model_validate({"method": "postgres", "database": "postgresql://me@nowhere", "query": "SELECT $1"})
    store = QueriedStore(PostgresDatabase(config, text=["items"]), ENCODER, dict(TABLE.schema))
    for why in ["has not answered within 0.2 s"] * 3 + ["has not answered 3 queries"]:
        with pytest.raises(StoreError, match=why):
            store.find(KEYS)
    assert len(called) == 3
    goes_on.set()
    for thread in store._left:
        thread.join(30)
    assert len(closed) == 3
    assert_same(store.find(KEYS), snapshot().find(KEYS))
    store.close()
    assert len(closed) == 4


def adbc_store(folder, query, database="sqlite:rows.db", **more):
    values = {"method": "adbc", "database": database, "query": query, **more}
    config = validate(Adbc, values, source="party.yaml", context={"folder": folder})
    return QueriedStore(AdbcDatabase(config), ENCODER, dict(TABLE.schema))


@pytest.fixture
def sqlite_rows(tmp_path):
    """A folder with a SQLite file of the table."""
    import adbc_driver_sqlite.dbapi as dbapi

    with dbapi.connect(str(tmp_path / "rows.db")) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("rows", TABLE.to_arrow(compat_level=pl.CompatLevel.oldest()))
        connection.commit()
    return tmp_path


OF_SQLITE = "SELECT id AS key, * FROM rows WHERE id IN (SELECT value FROM json_each(?))"


def test_sqlite_gives_what_the_table_gives_and_sees_what_was_written_since(sqlite_rows):
    store = adbc_store(sqlite_rows, OF_SQLITE)
    for keys in (KEYS, [b"id-7"], [b"nobody"], [], [b'"id-3"', b"id-3'); DROP TABLE rows; --", b"id-3"]):
        assert_same(store.find(keys), snapshot().find(keys))
    with contextlib.closing(sqlite3.connect(sqlite_rows / "rows.db", timeout=1)) as connection:  # no reader holds it
        connection.execute("UPDATE rows SET x = 5, kind = NULL WHERE id = 'id-3'")
        connection.commit()
    changed = TABLE.with_columns(
        x=pl.when(pl.col("id") == "id-3").then(5.0).otherwise("x"),
        kind=pl.when(pl.col("id") == "id-3").then(None).otherwise("kind"),
    )
    assert_same(store.find([b"id-3"]), snapshot(changed).find([b"id-3"]))
    assert_same(store.find(KEYS), snapshot(changed).find(KEYS))
    store.close()
    assert_same(store.find(KEYS), snapshot(changed).find(KEYS))
    store.close()


def test_a_column_of_sqlite_that_the_model_does_not_read_may_hold_anything(sqlite_rows):
    store = adbc_store(sqlite_rows, OF_SQLITE.replace("*", "rows.*, iif(id = 'id-7', 'a', 1.23456789) AS other"))
    assert_same(store.find(KEYS), snapshot().find(KEYS))
    store.close()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id AS key, x FROM rows WHERE id IN (SELECT value FROM json_each(?))", "do not fit"),
        ("SELECT * FROM rows WHERE id IN (SELECT value FROM json_each(?))", 'no column "key"'),
        ("SELECT 'id-7' AS key, * FROM rows WHERE length(?) > 0", "several rows for one key"),
        ("SELECT id AS key, rows.*, x FROM rows WHERE id IN (SELECT value FROM json_each(?))", "several columns 'x'"),
        ("DELETE FROM rows WHERE id IN (SELECT value FROM json_each(?)) RETURNING id AS key", r"SQLite does not answer .*Error"),
        ("SELECT nope AS key FROM rows WHERE id = ?", r"store\.query: SQLite refuses it \(ProgrammingError, INVALID_ARGUMENT"),
        ("SELECT id AS key FROM rows", "SQLite refuses it"),
        (
            "SELECT id AS key, iif(id = 'id-7', 'a', 1.23456789) AS kind FROM rows WHERE id IN (SELECT value FROM json_each(?))",
            "column 'kind' holds text and fractions, which the driver then rounds; cast it in the query",
        ),
    ],
)
def test_a_query_that_does_not_find_rows_by_key_is_said_without_cells(sqlite_rows, query, why):
    before = (sqlite_rows / "rows.db").read_bytes()
    store = adbc_store(sqlite_rows, query)
    with pytest.raises(StoreError, match=why) as told:
        store.find(KEYS)
    assert "id-" not in str(told.value)
    store.close()
    assert (sqlite_rows / "rows.db").read_bytes() == before


def test_a_sqlite_file_that_is_not_there_is_said_and_not_made_and_found_once_it_is(sqlite_rows):
    (sqlite_rows / "rows.db").rename(sqlite_rows / "later.db")
    store = adbc_store(sqlite_rows, OF_SQLITE)
    with pytest.raises(StoreError, match=r"SQLite does not answer .*check that it is running"):
        store.find(KEYS)
    assert not (sqlite_rows / "rows.db").exists()
    (sqlite_rows / "later.db").rename(sqlite_rows / "rows.db")
    assert_same(store.find(KEYS), snapshot().find(KEYS))
    store.close()


def test_a_query_that_takes_long_costs_its_time(sqlite_rows, monkeypatch):
    monkeypatch.setattr("tallystick.scoring.stores.queried.CALL_S", 0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT max(i) AS key, ? FROM n"
    store = adbc_store(sqlite_rows, endless)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"SQLite has not answered within 0\.2 s"):
        store.find(KEYS)
    assert time.monotonic() - began < 2
    for thread in store._left:
        thread.join(60)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"database": "mysql:rows"}, r"database.*must be"),
        ({"database": "adbc:sqlite"}, r"database.*must be"),
        (
            {"database": "adbc:nowhere"},
            r"serving\.store: the driver of nowhere is not installed; install one that brings a manifest nowhere",
        ),
        ({"options": {"uri": "x"}}, "options: only works with an adbc: database"),
        ({"database": "adbc:flightsql", "options": {"password": "x"}}, "options.*holds"),
        ({"database": "adbc:flightsql", "options": {"uri": "grpc://me:hunter@db"}}, "holds a password"),
        ({"database": "adbc:flightsql", "options": {"a": "x"}, "secret_options": {"a": {"env": "A"}}}, "occurs in both"),
    ],
)
def test_a_database_that_cannot_be_asked_is_refused_by_name(tmp_path, changes, why):
    with pytest.raises(ConfigError, match=why) as told:
        adbc_store(tmp_path, OF_SQLITE, **changes)
    assert "hunter" not in str(told.value)


OF_DUCKDB = """SELECT id AS key, * FROM rows WHERE id IN (SELECT unnest(from_json(?, '["VARCHAR"]')))"""


def test_a_flight_sql_server_gives_what_the_table_gives_and_is_called_again_after_it_was_away(tmp_path, monkeypatch):
    """By a server on loopback that prepares, binds and runs the query, in DuckDB; it stands for all other drivers."""
    pytest.importorskip("adbc_driver_flightsql")
    monkeypatch.setenv("FLIGHT_TOKEN", flight_server.TOKEN)
    server = flight_server.PreparingServer(TABLE)
    how = {
        "database": "adbc:flightsql",
        "options": {"uri": f"grpc://127.0.0.1:{server.port}"},
        "secret_options": {"adbc.flight.sql.authorization_header": {"env": "FLIGHT_TOKEN"}},
    }
    store = adbc_store(tmp_path, OF_DUCKDB, **how)
    try:
        for keys in (KEYS, [b"nobody"], [b"id-3'); DROP TABLE rows; --", b"id-3"]):
            assert_same(store.find(keys), snapshot().find(keys))
        port = server.port
        server.shutdown()
        with pytest.raises(StoreError, match=r"adbc:flightsql (does not answer|has not answered)") as told:
            store.find(KEYS)
        assert flight_server.TOKEN not in str(told.value)
        server = flight_server.PreparingServer(TABLE, port=port)
        assert_same(store.find(KEYS), snapshot().find(KEYS))
    finally:
        store.close()
        server.shutdown()


class Failing:
    """A store that fails unexpectedly, or says why."""

    blocks = False

    def __init__(self, *errors):
        self._errors = iter(errors)

    def find(self, keys):
        if (error := next(self._errors, None)) is not None:
            raise error
        return snapshot().find(keys)


def test_whatever_a_store_raises_is_a_store_error_and_is_said_once():
    said = []
    errors = [
        RecursionError(),
        UnicodeDecodeError("utf-8", b"", 0, 1, ""),
        pl.exceptions.PanicException("a panic"),
        StoreError("it is away"),
        StoreError("it is away"),
    ]
    store = Boundary(Failing(*errors), say=said.append)
    for _ in errors:
        with pytest.raises(StoreError):
            store.find(KEYS)
    assert_same(store.find(KEYS), snapshot().find(KEYS))
    assert [line.partition(";")[0] for line in said] == [
        "the store of rows failed unexpectedly (RecursionError)",
        "the store of rows failed unexpectedly (UnicodeDecodeError)",
        "the store of rows failed unexpectedly (PanicException)",
        "it is away",
        "the store of rows answers again",
    ]


def test_keys_that_are_none_have_no_row_and_leave_the_others_theirs():
    class Picky(Failing):
        def find(self, keys):
            assert not {b"\0", b"\xff\xfe"} & set(keys)
            return snapshot().find(keys)

    keys = [b"id-3", b"\0", b"id-7", b"\xff\xfe", b"y" * 1025]
    found = Boundary(Picky(), say=print).find(keys)
    assert found.is_found_B.tolist() == [True, False, True, False, False]
    assert torch.equal(found.features_E.numeric_NF, snapshot().find([b"id-3", b"id-7"]).features_E.numeric_NF)


def test_a_table_is_read_again_when_it_has_changed_and_stays_as_it_was_when_it_cannot_be():
    tables, said = [TABLE], []

    def read():
        return snapshot(tables[-1])

    store = TableStore(snapshot(), read=read, signature=lambda: len(tables), refresh_s=3600, say=said.append)
    changed = TABLE.with_columns(x=pl.col("x") + 1)
    tables.append(changed)
    assert_same(store.find(KEYS), snapshot().find(KEYS))  # nobody has looked yet
    store.refresh()
    assert_same(store.find(KEYS), snapshot(changed).find(KEYS))
    tables.append(TABLE.drop("x"))
    store.refresh()
    assert_same(store.find(KEYS), snapshot(changed).find(KEYS))
    assert said[-1].startswith("the table has changed and cannot be read; the former table stays in use: feature column 'x'")

    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    store._signature = gone
    store.refresh()
    assert_same(store.find(KEYS), snapshot(changed).find(KEYS))
    assert "cannot be looked at (No such file or directory)" in said[-1]
    store.close()


def test_a_table_that_cannot_be_read_is_said_once_and_so_is_its_end():
    """Each look at a file that was broken once said so again."""
    tables, said = [TABLE], []
    store = TableStore(
        snapshot(), read=lambda: snapshot(tables[-1]), signature=lambda: len(tables), refresh_s=3600, say=said.append
    )
    for other, line in (
        (TABLE.drop("x"), "the table has changed and cannot be read; the former table stays in use: feature column 'x' is not"),
        (TABLE.drop("id"), "the table has changed and cannot be read; the former table stays in use: key column 'id' is not"),
        (TABLE, "the table can be read again, and has not changed"),
        (TABLE.drop("x"), "the table has changed and cannot be read; the former table stays in use: feature column 'x' is not"),
        (TABLE.with_columns(x=pl.col("x") + 1), "the table has changed and was read again"),
    ):
        tables.append(other)
        for _ in range(3):
            store.refresh()
        assert len(said) == 1
        assert said.pop().startswith(line)
    store.close()


def test_a_query_that_gives_its_rows_in_another_order_has_not_changed():
    tables, said = [TABLE], []
    store = TableStore(snapshot(), read=lambda: snapshot(tables[-1]), signature=object, refresh_s=3600, say=said.append)
    for other in (TABLE.reverse(), TABLE.sample(fraction=1, shuffle=True, seed=1)):
        tables.append(other)
        store.refresh()
        assert_same(store.find(KEYS), snapshot().find(KEYS))
    assert said == []
    store.close()


def test_a_table_that_is_looked_at_each_time_is_said_to_have_changed_only_when_its_rows_have():
    """Like a query's answer, about which nothing says beforehand whether it changed."""
    tables, said = [TABLE], []
    store = TableStore(snapshot(), read=lambda: snapshot(tables[-1]), signature=object, refresh_s=3600, say=said.append)
    store.refresh()
    assert said == []
    for other in (TABLE.with_columns(x=pl.col("x") + 1), TABLE[1:], TABLE):
        tables.append(other)
        store.refresh()
        store.refresh()
        assert said == ["the table has changed and was read again"]
        assert_same(store.find(KEYS), snapshot(other).find(KEYS))
        said.clear()
    store.close()


def test_a_key_that_names_several_rows_names_none():
    keys = read_keys(
        pl.concat([TABLE, TABLE[:1]]),
        columns={"id": "id"},
        alignment=IntersectionConfig.model_validate({"keys": [{"name": "id"}], "duplicates": "all"}),
    )
    found = Snapshot.of(pl.concat([TABLE, TABLE[:1]]), keys, ENCODER).find([b"id-0", b"id-1"])
    assert found.is_found_B.tolist() == [False, True]
    assert columns_read(ENCODER) == ["x", "whole", "kind", "items"]
