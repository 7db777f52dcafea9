"""Certificates are renewed while both sides serve, and an own store hangs: clients have an answer in time."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time

import polars as pl
import pytest
from serving_job import Served
from test_serve import bits
from tiny import within

from tallystick.network.addresses import free_port
from tallystick.network.certificates import write_test_certificates

DEADLINE_MS = 400.0
JOINT, ALONE = "joint model", "own columns"


def by(response):
    return response.json()["scores"][0]["scored_by"] if response.status_code == 200 else response.status_code


@pytest.mark.long
def test_new_certificates_of_another_ca_need_a_restart_of_one_side_alone(trained, tmp_path):
    job, expected = trained
    key = expected.filter(expected["scored_by"] == JOINT)["id"][0]
    served = Served(job, way="key", deadline_ms=DEADLINE_MS)
    former = {
        name: {file: (job.home(name) / file).read_bytes() for file in ("ca.pem", "own.pem", "own.key")} for name in job.parties
    }
    try:
        served.start().until_ready()
        write_test_certificates(tmp_path / "new", list(job.parties))
        for name in job.parties:
            for source, target in (("ca.pem", "ca.pem"), (f"{name}.pem", "own.pem"), (f"{name}.key", "own.key")):
                shutil.copy(tmp_path / "new" / source, job.home(name) / target)
        assert by(served.ask({"id": key})) == JOINT
        os.kill(served.running["shop"].process.pid, signal.SIGTERM)
        served.running["shop"].end(30)
        assert by(served.ask({"id": key})) == ALONE
        served.start("shop")
        assert within(90, lambda: by(served.ask({"id": key})) == JOINT)
    finally:
        served.close()
        for name, files in former.items():
            for file, text in files.items():
                (job.home(name) / file).write_bytes(text)


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


@pytest.fixture
def redis():
    """A server that can be stopped: its process and its port."""
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        pytest.skip("no redis-server here (apt-get install redis-server)")
    process = subprocess.Popen([program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL)
    yield process, port
    process.kill()
    process.wait()


@pytest.mark.long
def test_while_the_own_store_hangs_a_key_is_told_so_in_time_and_a_row_with_its_columns_is_scored(trained, redis):
    import redis as redis_client

    (store, port), (job, expected) = redis, trained
    table = pl.read_parquet(job.home("bank") / "table.parquet").join(expected.filter(expected["scored_by"] == JOINT), on="id")
    row = table.select("id", "x", "noise", "kind").to_dicts()[0]
    client = redis_client.Redis(port=port)
    assert within(20, lambda: answers(port))
    client.set(f"bank:{row['id']}", json.dumps(row))
    client.close()
    where = {"method": "redis", "url": f"redis://127.0.0.1:{port}/0", "prefix": "bank:"}
    served = Served(job, way="key", deadline_ms=DEADLINE_MS, store=where)
    try:
        served.start().until_ready()
        assert by(served.ask({"id": row["id"]})) == JOINT
        store.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert by(served.ask({"id": row["id"]})) == 503
        assert time.monotonic() - began < 2 * DEADLINE_MS / 1000  # the store's own limit is a second
        assert by(served.ask(row)) in (JOINT, ALONE)
        store.send_signal(signal.SIGCONT)
        assert within(30, lambda: by(served.ask({"id": row["id"]})) == JOINT)
    finally:
        store.send_signal(signal.SIGCONT)
        served.close()


def test_rows_of_a_sqlite_file_have_the_bits_of_the_table_and_a_file_that_goes_and_comes_stops_nothing(trained, tmp_path):
    pytest.importorskip("adbc_driver_sqlite")
    import adbc_driver_sqlite.dbapi as dbapi

    job, expected = trained
    file, asked = tmp_path / "rows.db", expected.filter(expected["scored_by"] == JOINT).head(20)
    table = pl.read_parquet(job.home("bank") / "table.parquet").select("id", "x", "noise", "kind")
    with dbapi.connect(str(file)) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("rows", table.to_arrow(compat_level=pl.CompatLevel.oldest()))
        connection.commit()
    query = "SELECT id AS key, x, noise, kind FROM rows WHERE id IN (SELECT value FROM json_each(?))"
    served = Served(job, way="key", store={"method": "adbc", "database": f"sqlite:{file}", "query": query})
    try:
        served.start().until_ready()
        answers = served.ask(*[{"id": each} for each in asked["id"]]).json()["scores"]
        assert bits([each["score"] for each in answers]) == bits(asked["score"].to_numpy())
        assert by(served.ask({"id": "nobody"})) == 404
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("ALTER TABLE rows RENAME TO away")
        assert by(served.ask({"id": asked["id"][0]})) == 503
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("ALTER TABLE away RENAME TO rows")
        assert by(served.ask({"id": asked["id"][0]})) == JOINT
    finally:
        served.close()
