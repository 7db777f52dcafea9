"""Tables by ADBC drivers: SQLite's file, and a Flight SQL server on loopback, which stands for all other drivers."""

import sqlite3
from contextlib import closing
from pathlib import Path

import adbc_driver_sqlite
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight

from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, DataError
from tallystick.reading import validate
from tallystick.tables.table import read_table

ROWS = pa.table({"id": ["007", "8", "9"], "income": [1.5, None, 2.5], "paid": [True, False, None]})
TOKEN = "Bearer a-token-of-some-length"


def table_of(folder, **values):
    return validate(TableConfig, values, source="party.yaml", context={"folder": folder})


def sqlite_of(folder, *statements):
    with closing(sqlite3.connect(folder / "t.db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def read_sqlite(folder, query):
    return read_table(table_of(folder, query=query, database="sqlite:t.db")).collect()


def test_a_table_of_sqlite_has_its_types_and_its_rows(tmp_path):
    sqlite_of(
        tmp_path,
        "CREATE TABLE t (id TEXT, whole INTEGER, real REAL, mixed, note TEXT)",
        "INSERT INTO t VALUES ('007', 9007199254740993, 1.5, 1, NULL), ('8', NULL, 2.5, 2, 'a'), ('9', 3, NULL, 2.5, '')",
    )
    rows = read_sqlite(tmp_path, "SELECT * FROM t")
    assert rows.rows() == [("007", 9007199254740993, 1.5, 1.0, None), ("8", None, 2.5, 2.0, "a"), ("9", 3, None, 2.5, "")]
    assert rows.dtypes == [pl.String, pl.Int64, pl.Float64, pl.Float64, pl.String]


def test_a_column_that_is_whole_in_its_first_thousands_of_rows_keeps_its_fractions(tmp_path):
    sqlite_of(tmp_path, "CREATE TABLE t (x)")
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.executemany("INSERT INTO t VALUES (?)", [(row,) for row in range(5000)] + [(0.5,)])
        connection.commit()
    assert read_sqlite(tmp_path, "SELECT * FROM t")["x"].to_list() == [*map(float, range(5000)), 0.5]


def test_numbers_beside_text_keep_all_their_digits(tmp_path):
    """The driver writes a fraction there in seven digits, so ids of nine became equal."""
    cells = [123456789.25, 123456790.25, 0.1, 1e300, -2.0, 2**60, "x", "1.250000e+00", None]
    sqlite_of(tmp_path, "CREATE TABLE t (id, other TEXT)")
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.executemany("INSERT INTO t VALUES (?, 'a')", [(cell,) for cell in cells])
        connection.commit()
    wanted = ["123456789.25", "123456790.25", "0.1", "1e+300", "-2", str(2**60), "x", "1.250000e+00", None]
    rows = read_sqlite(tmp_path, "SELECT other, id FROM t;")
    assert rows["id"].to_list() == wanted
    assert rows.columns == ["other", "id"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("DELETE FROM t", "readonly"),
        ("CREATE TABLE u (x)", "readonly"),
        ("SELECT nope FROM t", "no such column: nope"),
        ("SELECT x, x FROM t", "x"),
    ],
)
def test_a_query_that_does_more_than_read_is_refused(tmp_path, query, says):
    sqlite_of(tmp_path, "CREATE TABLE t (x INTEGER)", "INSERT INTO t VALUES (1), (2)")
    before = (tmp_path / "t.db").read_bytes()
    with pytest.raises(DataError, match=rf"sqlite:t\.db: .*{says}"):
        read_sqlite(tmp_path, query)
    assert (tmp_path / "t.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.db"]


def test_a_file_that_is_not_there_is_named_and_not_made(tmp_path):
    with pytest.raises(DataError, match=r"sqlite:t\.db: there is no such database file; check table\.database"):
        read_sqlite(tmp_path, "SELECT 1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "t.db").write_text("no database" * 100)
    with pytest.raises(DataError, match=r"sqlite:t\.db: the query failed: .*not a database"):
        read_sqlite(tmp_path, "SELECT * FROM t")


def varints(content):
    """Yield the fields of a protocol buffer whose values are all strings: number, value."""
    while content:
        number, length, content = content[0] >> 3, content[1], content[2:]
        if length > 127:
            length, content = length - 128 + (content[0] << 7), content[1:]
        yield number, content[:length]
        content = content[length:]


class Server(flight.FlightServerBase):
    """A Flight SQL server of one table: it knows the command for a statement, and always returns its rows."""

    def __init__(self):
        super().__init__("grpc://127.0.0.1:0", middleware={"token": _Door()})
        self.queries = []

    def get_flight_info(self, _context, descriptor):
        command = dict(varints(descriptor.command))
        if not command[1].endswith(b".CommandStatementQuery"):
            raise NotImplementedError("this server answers statements alone")
        query = dict(varints(command[2]))[1].decode()
        self.queries.append(query)
        if "nope" in query:
            raise flight.FlightServerError(f"no such column; you are {TOKEN}")
        endpoint = flight.FlightEndpoint(b"rows", [])
        return flight.FlightInfo(ROWS.schema, descriptor, [endpoint], ROWS.num_rows, -1)

    def do_get(self, _context, _ticket):
        return flight.RecordBatchStream(ROWS)


class _Door(flight.ServerMiddlewareFactory):
    def start_call(self, _info, headers):
        if headers.get("authorization") != [TOKEN]:
            raise flight.FlightUnauthenticatedError("who are you?")


@pytest.fixture
def server():
    with Server() as server:
        yield server


def asked(server, folder, query="SELECT * FROM customers", **changes):
    values = {
        "query": query,
        "database": "adbc:flightsql",
        "options": {"uri": f"grpc://127.0.0.1:{server.port}"},
        "secret_options": {"adbc.flight.sql.authorization_header": {"file": str(folder / "token")}},
    }
    (folder / "token").write_text(TOKEN + "\n")
    return read_table(table_of(folder, **values, **changes)).collect()


def test_a_server_of_flight_sql_is_asked_with_a_secret_from_a_file(server, tmp_path):
    rows = asked(server, tmp_path)
    assert rows.rows() == [("007", 1.5, True), ("8", None, False), ("9", 2.5, None)]
    assert server.queries == ["SELECT * FROM customers"]


def test_what_a_driver_says_comes_without_the_secret(server, tmp_path):
    with pytest.raises(DataError, match=r"adbc:flightsql: the query failed: .*no such column; you are \*\*\*") as told:
        asked(server, tmp_path, "SELECT nope FROM customers")
    assert "a-token" not in str(told.value)
    server.shutdown()
    with pytest.raises(DataError, match="adbc:flightsql: the query failed: ") as told:
        asked(server, tmp_path)
    assert "a-token" not in str(told.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"database": "adbc:sqlite"}, 'must be "sqlite:FILE" for this driver'),
        ({"database": "adbc:os.path"}, "must be"),
        ({"database": "adbc:x", "options": {"password": "abc"}}, 'holds "password"; the party file must not contain a secret'),
        (
            {"database": "adbc:x", "options": {"uri": "grpc://me:abc@host"}},
            "holds a password; the party file must not contain a secret",
        ),
        ({"database": "adbc:x", "secret_options": {"password": "abc"}}, "the party file must not contain a secret"),
        ({"database": "sqlite:t.db", "options": {"uri": "x"}}, "options: only works with an adbc: database"),
        ({"options": {"uri": "x"}}, "options: only works with an adbc: database"),
        (
            {"database": "adbc:x", "options": {"uri": "x"}, "secret_options": {"uri": {"env": "URI"}}},
            "options, secret_options: uri occurs in both",
        ),
        ({"database": "sqlite:t.db", "password": {"env": "WORD"}}, "password: only works with a postgresql:// database"),
    ],
)
def test_what_does_not_go_together_is_refused_and_no_secret_is_shown(tmp_path, values, says):
    with pytest.raises(ConfigError) as told:
        table_of(tmp_path, query="SELECT 1", **values)
    assert says in str(told.value)
    assert "abc" not in str(told.value)


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        # Only names that Apache Arrow holds on PyPI: any other one may be a stranger's package
        ("snowflake", "pip install adbc-driver-snowflake"),
        ("bigquery", "pip install adbc-driver-bigquery"),
        ("databricks", r"install one that brings a manifest databricks\.toml"),
        ("no_such", r"install one that brings a manifest no_such\.toml"),
    ],
)
def test_a_driver_that_is_not_installed_is_named_with_what_to_do(tmp_path, driver, says):
    with pytest.raises(DataError, match=rf"table\.database: the driver of {driver} is not installed; .*{says}"):
        read_table(table_of(tmp_path, query="SELECT 1", database=f"adbc:{driver}"))


@pytest.mark.parametrize(
    ("driver", "option"),
    [
        ("snowflake", "password"),
        ("snowflake", "adbc.snowflake.sql.client_option.auth_token"),
        ("snowflake", "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_value"),
        ("snowflake", "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_password"),
        ("bigquery", "adbc.bigquery.sql.auth_credentials"),
        ("bigquery", "adbc.bigquery.sql.auth.client_secret"),
        ("bigquery", "adbc.bigquery.sql.auth.refresh_token"),
        ("databricks", "databricks.access_token"),
        ("databricks", "databricks.oauth.client_secret"),
        ("flightsql", "adbc.flight.sql.authorization_header"),
        ("flightsql", "adbc.flight.sql.client_option.mtls_private_key"),
        ("flightsql", "adbc.flight.sql.oauth.exchange.subject_token"),
        ("flightsql", "adbc.flight.sql.rpc.call_header.x-api-key"),
        ("flightsql", "adbc.flight.sql.rpc.call_header.cookie"),
    ],
)
def test_an_option_that_is_a_secret_is_given_as_one(tmp_path, driver, option):
    with pytest.raises(ConfigError, match=r"must not contain a secret; .*under secret_options") as told:
        table_of(tmp_path, query="SELECT 1", database=f"adbc:{driver}", options={option: "s3cret"})
    assert "s3cret" not in str(told.value)
    given = table_of(tmp_path, query="SELECT 1", database=f"adbc:{driver}", secret_options={option: {"env": "SECRET"}})
    assert list(given.secret_options) == [option]


@pytest.mark.parametrize(
    ("uri", "is_secret"),
    [
        ("reader:s3cret@account/bank/public", True),
        ("reader:s3cret@tcp(db.example:3306)/bank", True),
        ("databricks://token:s3cret@host:443/sql/1.0/warehouses/7", True),
        ("grpc://host:31337?token=s3cret", True),
        ("reader@account/bank/public", False),
        ("databricks://host:443/sql/1.0/warehouses/7?catalog=main", False),
        ("grpc+tls://host:31337", False),
        ("bigquery:///project?dataset=bank", False),
    ],
)
def test_an_address_with_a_password_is_refused(tmp_path, uri, is_secret):
    values = {"query": "SELECT 1", "database": "adbc:x", "options": {"uri": uri}}
    if is_secret:
        with pytest.raises(ConfigError, match=r"options.*holds a password") as told:
            table_of(tmp_path, **values)
        assert "s3cret" not in str(told.value)
    else:
        assert table_of(tmp_path, **values).options == {"uri": uri}


def test_a_driver_is_found_by_its_manifest(tmp_path, monkeypatch):
    sqlite_of(tmp_path, "CREATE TABLE t (id TEXT, n INTEGER)", "INSERT INTO t VALUES ('7', 1)")
    library = next(Path(adbc_driver_sqlite.__file__).parent.glob("libadbc_driver_sqlite.so"))
    (tmp_path / "lakehouse.toml").write_text(f'manifest_version = 1\n[Driver]\nshared = "{library}"\n')
    (tmp_path / "moved.toml").write_text('manifest_version = 1\n[Driver]\nshared = "/nowhere/lib.so"\n')
    (tmp_path / "broken.toml").write_text("nothing")
    monkeypatch.setenv("ADBC_DRIVER_PATH", str(tmp_path))
    values = {"query": "SELECT * FROM t", "options": {"uri": str(tmp_path / "t.db")}}
    assert read_table(table_of(tmp_path, database="adbc:lakehouse", **values)).collect().rows() == [("7", 1)]
    for driver in ("moved", "broken"):
        with pytest.raises(DataError, match=rf"the driver of {driver} cannot be loaded: .*{driver}\.toml") as told:
            read_table(table_of(tmp_path, database=f"adbc:{driver}", **values))
        assert "\n" not in str(told.value)
