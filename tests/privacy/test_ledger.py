"""The ledger: spent budget stays spent, through caps, crashes, torn files and two processes at once."""

import errno
import fcntl
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from tallystick.errors import ConfigError, StorageError
from tallystick.privacy.events import GaussianDP, NotPrivate, PureDP
from tallystick.privacy.ledger import BudgetExceeded, Cap, Ledger

TENTH = PureDP(epsilon=0.1)


@pytest.fixture
def path(tmp_path):
    return Ledger.create(tmp_path / "folder" / "bank.ledger", party="bank").path


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


def test_what_is_spent_waits_for_the_disk(tmp_path, monkeypatch):
    first = []

    class Noting(sqlite3.Connection):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            first.append(None)

        def execute(self, statement, *values):
            first[-1] = first[-1] or statement
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.dbapi2.connect, factory=Noting))
    Ledger.create(tmp_path / "bank.ledger", party="bank").spend("test", TENTH, what="AUC")
    assert len(first) >= 2
    assert set(first) == {"PRAGMA synchronous=EXTRA"}


def test_a_cap_is_reached_exactly_and_then_refuses(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=1.0))
    for _ in range(10):
        ledger.spend("test", TENTH, what="AUC")
    with pytest.raises(BudgetExceeded, match=r"from 1 to 1\.1 .* cap of 1;"):
        ledger.spend("test", TENTH, what="AUC")
    with pytest.raises(BudgetExceeded, match="has no guarantee, so no epsilon bounds it"):
        ledger.spend("test", NotPrivate(), what="exact AUC")
    assert ledger.total("test") == 1


def test_what_is_not_private_is_on_record_and_in_no_sum(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=1.0))
    ledger.spend("test", PureDP(epsilon=0.5), what="AUC")
    ledger.enter_not_private("test", what="training")
    ledger.spend("other", NotPrivate(), what="exact AUC")
    ledger.spend("test", PureDP(epsilon=0.5), what="AUC")
    assert (ledger.total("test"), ledger.total("other")) == (1.0, 0.0)
    assert [(entry.number, entry.dataset, entry.what) for entry in ledger.not_private()] == [
        (2, "test", "training"),
        (3, "other", "exact AUC"),
    ]
    assert [entry.what for entry in ledger.not_private("other")] == ["exact AUC"]
    exported = ledger.export()
    assert [entry["what"] for entry in exported["not_private"]] == ["training", "exact AUC"]
    assert list(exported["datasets"]) == ["test"]
    assert exported["datasets"]["test"]["running_label_epsilon"] == [0.5, 1.0]


def test_gaussian_totals_are_numbers_at_the_caps_delta_or_at_the_one_asked_for(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=30.0, delta=1e-5))
    for dataset in ("test", "free"):
        ledger.spend(dataset, GaussianDP(noise_multiplier=3.0), what="AUC")
        ledger.spend(dataset, GaussianDP(noise_multiplier=3.0), what="AUC")
    datasets = ledger.export(delta=1e-7)["datasets"]
    for name, delta in (("test", 1e-5), ("free", 1e-7)):
        found = datasets[name]
        assert found["spent"] == {"epsilon": pytest.approx(ledger.total(name, delta=delta)), "delta": delta}
        assert 0 < found["running_label_epsilon"][0] < found["running_label_epsilon"][1] == found["spent"]["epsilon"] < 30


def test_a_ledger_is_created_once_with_an_identity_of_its_own(path, tmp_path):
    ledger = Ledger(path, party="bank")
    assert re.fullmatch("ledger-[0-9a-f]{32}", ledger.identity)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="exists already; a ledger is created once"):
        Ledger.create(path, party="bank")
    other = Ledger.create(tmp_path / "other", party="bank")
    assert other.identity != ledger.identity
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="a ledger is one for ever"):
        connection.execute("UPDATE head SET identity = 'ledger-0'")
    connection.close()


def test_an_older_copy_does_not_hold_a_later_head(path, tmp_path):
    ledger = Ledger(path, party="bank")
    heads = [ledger.head()]
    shutil.copy(path, tmp_path / "copy")
    ledger.spend("test", TENTH, what="AUC")
    heads.append(ledger.head())
    copy = Ledger(tmp_path / "copy", party="bank")
    assert [ledger.holds(*head) for head in heads] == [True, True]
    assert [copy.holds(*head) for head in heads] == [True, False]
    copy.spend("test", TENTH, what="another AUC")
    assert not copy.holds(*heads[1])


def test_a_cap_with_delta_composes_gaussian_releases(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=3.0, delta=1e-6))
    ledger.spend("test", GaussianDP(noise_multiplier=3.0), what="AUC")
    with pytest.raises(BudgetExceeded):
        ledger.spend("test", GaussianDP(noise_multiplier=3.0, releases=4), what="AUC")
    assert len(ledger.entries()) == 1


def test_a_party_that_a_contract_names_otherwise_has_the_same_total_and_cap(path):
    Ledger(path, party="bank").set_cap("test", Cap(epsilon=1.0))
    Ledger(path, party="bank").spend("test", PureDP(epsilon=0.6), what="labels")
    lender = Ledger(path, party="lender")
    assert lender.total("test") == 0.6
    with pytest.raises(BudgetExceeded, match=r"lender's .* from 0\.6 to 1\.2"):
        lender.spend("test", PureDP(epsilon=0.6), what="labels")
    lender.spend("test", PureDP(epsilon=0.4), what="labels")
    assert [entry.party for entry in Ledger(path, party="bank").entries("test")] == ["bank", "lender"]


def test_export_is_json_with_running_totals_and_no_infinities(path):
    ledger = Ledger(path, party="bank")
    ledger.set_cap("test", Cap(epsilon=1.0))
    ledger.spend("test", TENTH, what="AUC")
    ledger.spend("test", PureDP(epsilon=0.2, unit="record"), what="curves")
    ledger.spend("open", NotPrivate(), what="exact AUC")
    exported = json.loads(json.dumps(ledger.export(), allow_nan=False))
    assert exported["datasets"]["test"]["running_label_epsilon"] == pytest.approx([0.1, 0.3])
    assert exported["datasets"]["test"]["record_epsilon"] is None
    assert "open" not in exported["datasets"]
    assert [entry["what"] for entry in exported["not_private"]] == ["exact AUC"]
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
    for use in (lambda: ledger.spend("test", TENTH, what="AUC"), lambda: Ledger(path, party="bank")):
        with pytest.raises(StorageError, match="cannot be used: unable to open database file"):
            use()
    assert not path.exists()


def test_a_file_that_is_something_else_is_refused(path):
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


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_at_once(path, monkeypatch, number):
    """As on a network without its lock service. SQLite waits for half a minute, and says that the file is locked."""

    def without(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", without)
    with pytest.raises(StorageError, match=f"its file system has no locks on files .{os.strerror(number)}.*local disk"):
        Ledger(path, party="bank")
    with pytest.raises(StorageError, match=r"has no locks on files .*without nolock\)$"):
        Ledger.create(path.with_name("another"), party="bank")
    assert [each.name for each in path.parent.iterdir()] == [path.name]


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


def test_of_many_that_create_a_ledger_at_once_one_does(tmp_path):
    def create(_index):
        try:
            return Ledger.create(tmp_path / "new", party="bank").identity
        except ConfigError:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [identity for identity in pool.map(create, range(8)) if identity is not None]
    assert made == [Ledger(tmp_path / "new", party="bank").identity]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)])
def test_caps_that_make_no_sense_are_refused(epsilon, delta):
    with pytest.raises(ConfigError):
        Cap(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("damage", ["'much'", "-1", "x'00ff'"])
def test_a_cap_that_is_no_number_is_a_damaged_ledger(tmp_path, damage):
    """Caps are outside the chain of hashes, and SQLite keeps text in a column of numbers."""
    ledger = Ledger.create(tmp_path / "ledger.sqlite", party="bank")
    ledger.set_cap("labels", Cap(epsilon=1.0))
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER caps_stay")
        connection.execute(f"UPDATE caps SET epsilon = {damage}")
    for use in (lambda: ledger.cap("labels"), lambda: ledger.spend("labels", PureDP(epsilon=0.1), what="a release")):
        with pytest.raises(StorageError, match="the cap of data set 'labels' is not a valid number"):
            use()
    assert ledger.entries() == []
