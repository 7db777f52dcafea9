"""The ledger: what was spent stays spent, through caps, crashes, torn files and two processes at once."""

import json
import math
import signal
import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from tallystick.errors import ConfigError, StorageError
from tallystick.privacy.events import GaussianDP, NotPrivate, PureDP
from tallystick.privacy.ledger import BudgetExceeded, Cap, Ledger

TENTH = PureDP(epsilon=0.1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "bank.ledger"


def test_spending_adds_up_per_data_set_and_survives_reopening(path):
    ledger = Ledger(path, party="bank")
    for _ in range(3):
        ledger.spend("test", TENTH, what="AUC")
    ledger.spend("other", PureDP(epsilon=2.0), what="AUC")
    again = Ledger(path, party="bank")
    assert again.total("test") == pytest.approx(0.3)
    assert again.total("other") == 2
    assert again.total("never seen") == 0
    assert [entry.number for entry in again.entries()] == [1, 2, 3, 4]


def test_a_cap_is_reached_exactly_and_then_refuses(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=1.0))
    for _ in range(10):
        ledger.spend("test", TENTH, what="AUC")
    with pytest.raises(BudgetExceeded, match=r"from 1 to 1\.1 .* cap of 1;"):
        ledger.spend("test", TENTH, what="AUC")
    with pytest.raises(BudgetExceeded, match="inf"):
        ledger.spend("test", NotPrivate(), what="exact AUC")
    assert ledger.total("test") == 1
    ledger.spend("other", NotPrivate(), what="exact AUC")
    assert ledger.total("other") == math.inf


def test_a_cap_with_delta_composes_gaussian_releases(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=3.0, delta=1e-6))
    ledger.spend("test", GaussianDP(noise_multiplier=3.0), what="AUC")
    with pytest.raises(BudgetExceeded):
        ledger.spend("test", GaussianDP(noise_multiplier=3.0, releases=4), what="AUC")
    assert len(ledger.entries()) == 1


def test_parties_in_one_file_are_counted_apart(path):
    Ledger(path, party="bank").spend("test", TENTH, what="AUC")
    assert Ledger(path, party="shop").entries() == []
    Ledger(path, party="shop").spend("test", PureDP(epsilon=5.0), what="AUC")
    assert Ledger(path, party="bank").total("test") == 0.1


def test_export_is_json_with_running_totals_and_no_infinities(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=1.0))
    ledger.spend("test", TENTH, what="AUC")
    ledger.spend("test", PureDP(epsilon=0.2, unit="record"), what="curves")
    ledger.spend("open", NotPrivate(), what="exact AUC")
    exported = json.loads(json.dumps(ledger.export(), allow_nan=False))
    assert exported["datasets"]["test"]["running_label_epsilon"] == pytest.approx([0.1, 0.3])
    assert exported["datasets"]["test"]["record_epsilon"] is None
    assert exported["datasets"]["open"]["label_epsilon"] is None
    assert exported["datasets"]["test"]["entries"][1]["event"] == {"type": "pure", "epsilon": 0.2, "unit": "record"}


def test_entries_cannot_be_changed_or_removed(path):
    ledger = Ledger(path, party="bank")
    ledger.spend("test", TENTH, what="AUC")
    ledger.set_cap("test", Cap(epsilon=1.0))
    connection = sqlite3.connect(path)
    changes = ("DELETE FROM entries", "UPDATE entries SET event = '{}'", "DELETE FROM caps", "UPDATE caps SET epsilon = 9")
    for statement in changes:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.rollback()
    for trigger in ("entries_stay", "entries_remain"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("DELETE FROM entries")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match="0 entries where 1 were written"):
        ledger.spend("test", TENTH, what="AUC")


def test_an_altered_entry_is_noticed(path):
    Ledger(path, party="bank").spend("test", PureDP(epsilon=5.0), what="AUC")
    content = path.read_bytes()
    assert content.count(b'"epsilon":5.0') == 1
    path.write_bytes(content.replace(b'"epsilon":5.0', b'"epsilon":0.1'))
    with pytest.raises(StorageError, match="not the one that was written"):
        Ledger(path, party="bank")


def test_a_file_cut_short_anywhere_is_refused_or_complete(path):
    ledger = Ledger(path, party="bank")
    for _ in range(40):
        ledger.spend("test", TENTH, what="AUC")
    content = path.read_bytes()
    for length in {0, 1, 99, 100, len(content) - 1, *range(512, len(content), 1024)}:
        path.write_bytes(content[:length])
        with pytest.raises(StorageError, match="Restore a copy"):
            Ledger(path, party="bank")
    path.write_bytes(content)
    assert Ledger(path, party="bank").total("test") == pytest.approx(4.0)


def test_a_ledger_that_vanished_is_not_started_anew_by_a_release(path):
    ledger = Ledger(path, party="bank")
    path.unlink()
    with pytest.raises(StorageError):
        ledger.spend("test", TENTH, what="AUC")
    assert not path.exists()


def test_a_file_that_is_something_else_is_refused(path):
    path.parent.mkdir()
    path.write_text("date,epsilon\n")
    with pytest.raises(StorageError, match="not a database"):
        Ledger(path, party="bank")
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE notes (text)").connection.close()
    with pytest.raises(StorageError, match="not a ledger"):
        Ledger(path, party="bank")


SPEND = textwrap.dedent(
    """
    import sys
    from tallystick.privacy.events import PureDP
    from tallystick.privacy.ledger import BudgetExceeded, Ledger
    ledger = Ledger(sys.argv[1], party="bank")
    print("ready", flush=True)
    sys.stdin.readline()
    spent = 0
    while True:
        try:
            ledger.spend("test", PureDP(epsilon=0.125), what="AUC")
        except BudgetExceeded:
            break
        spent += 1
        print(spent, flush=True)
    """
)


def spender(path):
    return subprocess.Popen([sys.executable, "-c", SPEND, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_never_pass_the_cap_and_lose_no_entry(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=5.0))
    with spender(path) as first, spender(path) as second:
        for process in (first, second):
            assert process.stdout.readline() == "ready\n"
        for process in (first, second):
            process.stdin.write("go\n")
            process.stdin.flush()
        counts = [len(process.stdout.read().split()) for process in (first, second)]
    assert sum(counts) == 40
    assert ledger.total("test") == 5
    assert [entry.number for entry in ledger.entries()] == list(range(1, 41))


def test_a_killed_process_leaves_every_release_it_reported_on_record(path):
    Ledger(path, party="bank").set_cap("test", Cap(epsilon=1000.0))
    with spender(path) as process:
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(20):
            last = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        reported = [int(line) for line in [last, *process.stdout] if line.strip().isdigit()][-1]
    assert len(Ledger(path, party="bank").entries("test")) >= reported >= 19


def test_two_threads_that_create_the_file_at_once_share_it(path):
    def use(index):
        Ledger(path, party="bank").spend("test", TENTH, what=f"AUC {index}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(8)))
    assert len(Ledger(path, party="bank").entries()) == 8


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)])
def test_caps_that_make_no_sense_are_refused(epsilon, delta):
    with pytest.raises(ConfigError):
        Cap(epsilon=epsilon, delta=delta)
