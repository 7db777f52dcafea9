"""Tables in an object store and Delta tables, over real HTTP to a local server of S3's protocol, with the same checks
as files.
"""

import gzip
import logging
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tiny import tables

from tallystick.config.party import parse_party
from tallystick.config.secret import Secret
from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, DataError
from tallystick.network.addresses import free_port
from tallystick.reading import validate
from tallystick.tables.stores import Store, StoredFile
from tallystick.tables.table import read_table

ROWS = pl.DataFrame({"id": ["007", "008", "010"], "x": [1.5, 2.5, None], "n": [1, 2, 3]})
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def server():
    """Return the address of a server of S3's protocol, with a bucket of tables in each form."""
    moto = pytest.importorskip("moto.server", reason="no local server of S3's protocol (moto)")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    endpoint = "http://{}:{}".format(*running.get_host_and_port())
    put = bucket(endpoint)
    put("one.parquet", parquet(ROWS))
    put("one.csv", ROWS.write_csv().encode())
    put("one.csv.gz", gzip.compress(ROWS.write_csv().encode()))
    for number in range(3):
        put(f"parts/part-{number}.parquet", parquet(ROWS[number : number + 1]))
        put(f"texts/part-{number}.csv", ROWS[number : number + 1].write_csv().encode())
    put("parts/_SUCCESS", b"")
    put("mixed/a.csv", b"id\n1\n")
    put("mixed/b.parquet", parquet(ROWS))
    put("damaged.parquet", parquet(ROWS)[:-20])
    put("other.csv", "id\nä\n".encode("latin-1"))
    yield endpoint
    running.stop()


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def bucket(endpoint):
    """Return a function that writes an object into the bucket ``rows``."""
    from pyarrow.fs import S3FileSystem

    files = S3FileSystem(
        access_key="writer", secret_key="hunter2", region="us-east-1", endpoint_override=endpoint, allow_bucket_creation=True
    )
    files.create_dir("rows")

    def put(key, content):
        with files.open_output_stream(f"rows/{key}") as stream:
            stream.write(content)

    return put


def parquet(frame):
    import io

    content = io.BytesIO()
    frame.write_parquet(content)
    return content.getvalue()


def read(server, path, *, text=(), **more):
    store = {"endpoint": server, "region": "us-east-1"} | more.pop("store", {})
    config = validate(TableConfig, {"path": path, "store": store, **more}, source="table", context={"folder": Path("/")})
    return read_table(config, text=text).collect()


@pytest.mark.parametrize(
    "path",
    ["one.parquet", "one.csv", "one.csv.gz", "parts", "parts/", "parts/part-*.parquet", "texts", "texts/part-?.csv"],
)
def test_a_table_in_a_store_is_the_table_in_a_file(server, path):
    assert read(server, f"s3://rows/{path}", text=("id",)).equals(ROWS)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("none.parquet", "s3://rows/none.parquet: the store has no such file, folder or pattern; check table.path"),
        ("none/", "s3://rows/none/: the store has no such file, folder or pattern"),
        ("part*/part-0.parquet", "only the last part may be a pattern; name the folder before it"),
        ("mixed", "s3://rows/mixed: holds a.csv and b.parquet; the files of one table must be of one kind"),
        ("damaged.parquet", "s3://rows/damaged.parquet: cannot be read: ArrowInvalid"),
        ("other.csv", "s3://rows/other.csv: is not text in utf-8; name its encoding under table in the party file"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_address(server, path, words):
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read(server, f"s3://rows/{path}")
    assert len(str(caught.value).splitlines()) == 1
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["one.parquet", "parts", "one.csv", "one.csv.gz", "texts"])
def test_no_more_rows_are_read_than_the_party_file_allows(server, path):
    assert read(server, f"s3://rows/{path}", max_rows=3).height == 3
    with pytest.raises(DataError, match=r"over table\.max_rows = 2"):
        read(server, f"s3://rows/{path}", max_rows=2)


def test_a_footer_that_announces_more_rows_than_fit_is_refused_before_one_is_fetched(server, tmp_path):
    from test_hostile_files import _announcing

    bucket(server)("hostile.parquet", _announcing(tmp_path / "table.parquet", 2**40).read_bytes())
    with pytest.raises(DataError, match=r"s3://rows/hostile\.parquet: announces 1,099,511,627,776 rows"):
        read(server, "s3://rows/hostile.parquet")


def test_credentials_come_from_where_the_party_file_says(server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "key").write_text("hunter2\n")
    store = {"access_key": {"command": ["echo", "reader"]}, "secret_key": {"file": str(tmp_path / "key")}}
    assert read(server, "s3://rows/one.parquet", store=store).equals(ROWS)
    with pytest.raises(ConfigError, match=r"table\.store\.secret_key: the environment has no variable NOWHERE"):
        read(server, "s3://rows/one.parquet", store=store | {"secret_key": {"env": "NOWHERE"}})


def test_a_store_that_refuses_or_is_away_ends_in_one_line():
    class Forbids(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Forbids) as forbids:
        threading.Thread(target=forbids.serve_forever, daemon=True).start()
        with pytest.raises(DataError, match=r"s3://rows/x\.csv: cannot be read: .*ACCESS_DENIED.*; check table.path and"):
            read(f"http://127.0.0.1:{forbids.server_address[1]}", "s3://rows/x.csv")
        forbids.shutdown()
    with pytest.raises(DataError, match=r"s3://rows/x\.csv: cannot be read: .*check table.path and table.store"):
        read(f"http://127.0.0.1:{free_port()}", "s3://rows/x.csv")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"path": "https://host/rows.csv"}, "table.path: is a https:// address; tables are read from files and from s3://"),
        ({"path": "s3://reader:hunter2@rows/x.csv"}, "table.path: holds a password; the party file must not contain a secret"),
        ({"path": "s3://"}, "must name a bucket and what is in it, such as s3://bucket/folder"),
        ({"path": "s3://rows/x.txt"}, 'table.path = "s3://rows/x.txt": must end in .csv'),
        ({"path": "x.csv", "store": {"region": "eu"}}, "table.store: only works with a path at s3://, gs:// or abfs://"),
        (
            {"path": "s3://rows/x.csv", "store": {"secret_key": "hunter2"}},
            "table.store.secret_key: the party file must not contain",
        ),
        ({"path": "s3://rows/x.csv", "store": {"endpoint": "http://me:hunter2@h"}}, "table.store.endpoint"),
        ({"query": "select 1", "version": 3}, "table.version: only works with path"),
        ({"path": 7}, "table.path = 7: must be a path, or an address such as s3://bucket/folder"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_when_the_file_is_read(table, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        parse_party({"party": "p", "table": table, "keys": {"id": "id"}}, folder=tmp_path)
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("gs://rows/parts/", "rows/parts"),
        ("abfs://rows@bank.dfs.core.windows.net/parts", "rows/parts"),
        ("abfs://rows/parts", "rows/parts"),
    ],
)
def test_other_stores_are_found_by_their_addresses(address, key):
    """None of their servers is at hand. This tests that Arrow accepts what we make of an address."""
    config = validate(TableConfig, {"path": address, "store": {"account": "bank"}}, source="table")
    assert Store.at(str(config.path), config.store).key == key
    with pytest.raises(DataError, match="no account is named"):
        Store.at("abfs://rows/parts", validate(TableConfig, {"path": "abfs://rows/parts"}, source="table").store)


def test_a_stored_file_has_a_name_and_an_address():
    file = StoredFile("s3://rows/parts/a.csv", "rows/parts/a.csv", None)
    assert (file.name, str(file)) == ("a.csv", "s3://rows/parts/a.csv")
    assert isinstance(Secret(env="A"), Secret)


@pytest.fixture(params=["folder", "store"])
def delta(request, tmp_path):
    """Return (how to write a Delta table, how to read it), in a folder and in a store."""
    deltalake = pytest.importorskip("deltalake", reason="no reader of Delta tables (pip install 'tallystick[delta]')")
    if request.param == "folder":
        place, options, server = str(tmp_path / "table"), None, None
    else:
        server = request.getfixturevalue("server")
        place = f"s3://rows/{tmp_path.name}"
        options = {"AWS_ENDPOINT_URL": server, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"} | KEYS

    def write(frame, **more):
        deltalake.write_deltalake(place, frame.to_arrow(), storage_options=options, **more)

    def fetch(**more):
        if server is not None:
            return read(server, place, **more)
        return read_table(validate(TableConfig, {"path": place, **more}, source="table")).collect()

    return write, fetch


def test_a_delta_table_is_its_latest_version_or_the_one_that_is_named(delta):
    write, fetch = delta
    write(ROWS)
    later = ROWS.with_columns(pl.col("n") + 10, new=pl.lit("late"), part=pl.Series(["a b", None, "c/d"]))
    write(later, mode="overwrite", schema_mode="overwrite", partition_by=["part"])
    assert fetch().sort("id").equals(later)
    assert fetch(version=0).equals(ROWS)
    write(ROWS[:1].with_columns(part=pl.lit("a b")), mode="append", schema_mode="merge")
    assert (
        fetch()
        .sort("n")
        .equals(pl.concat([ROWS[:1].with_columns(part=pl.lit("a b")), later], how="diagonal").select(later.columns))
    )
    with pytest.raises(DataError, match=r"announces 4 rows, over table\.max_rows = 3"):
        fetch(max_rows=3)
    with pytest.raises(DataError, match="cannot be read as a Delta table"):
        fetch(version=9)


def test_a_delta_table_without_its_reader_says_what_to_install(delta, monkeypatch):
    write, fetch = delta
    write(ROWS)
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(DataError, match=r"run: pip install 'tallystick\[delta\]'"):
        fetch()


def test_what_arrow_cannot_read_of_a_delta_table_is_refused(delta):
    write, fetch = delta
    write(ROWS, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(DataError, match="deletionVectors"):
        fetch()


def test_a_version_goes_with_a_delta_table_only(tmp_path):
    ROWS.write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"is not a Delta table; table\.version is only for Delta tables"):
        read_table(TableConfig(path=tmp_path / "rows.parquet", version=1))


@pytest.mark.long
def test_a_job_whose_table_lies_in_a_store(server, lay_out_job: Any):
    frames = tables(("bank", "shop"), rows=200)
    bucket(server)("job/shop.parquet", parquet(frames["shop"]))
    job = lay_out_job(frames=frames, training__epochs=1)
    job.change("shop", table={"path": "s3://rows/job/shop.parquet", "store": {"endpoint": server, "region": "us-east-1"}})
    (job.home("shop") / "table.parquet").unlink()
    assert job.run_all()["bank"].found["steps"] > 0
    kept = "".join(path.read_text(errors="replace") for path in job.runs("shop")[0].rglob("*") if path.is_file())
    assert "hunter2" not in kept
