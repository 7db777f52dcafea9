"""Keep the privacy ledger: an append-only, crash-safe record of every DP release, and the cap that refuses further ones.

There is one SQLite file per party, created once and known by its identity. A lost file is never started again. A data set has one
total and one cap, under any name that a contract gives the party. A release is spent, that is, committed to disk, before its
noise is drawn: a crash between the two wastes budget and never under-counts.
"""

import hashlib
import json
import math
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError, StorageError
from tallystick.msgspec_threads import prepared
from tallystick.privacy.composition import total_epsilon
from tallystick.privacy.events import Entered, Event, GaussianDP, NotPrivate, Unit, UnsentGaussianDP, check_delta, check_epsilon
from tallystick.privacy.exported import ExportedDataset, ExportedLedger
from tallystick.storage import make_folders, require_locks, sync_folder

_SCHEMA = """
BEGIN;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, party TEXT NOT NULL, dataset TEXT NOT NULL,
    what TEXT NOT NULL, event TEXT NOT NULL, chain TEXT NOT NULL
);
CREATE TABLE caps (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, party TEXT NOT NULL, dataset TEXT NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL
);
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL, entries INTEGER NOT NULL, chain TEXT NOT NULL
);
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER caps_stay BEFORE UPDATE ON caps BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER caps_remain BEFORE DELETE ON caps BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER identity_stays BEFORE UPDATE OF identity ON head BEGIN SELECT RAISE(ABORT, 'a ledger is one for ever'); END;
PRAGMA user_version = 2;
COMMIT;
"""

_OPENED = """
CREATE TABLE IF NOT EXISTS opened (
    dataset TEXT NOT NULL, shares TEXT NOT NULL, scores INTEGER NOT NULL, key TEXT NOT NULL, rows BLOB NOT NULL
)
"""

USUAL_DELTA = 1e-6
"""Delta for adding up Gaussian noise if nobody chose one."""
WAIT_S = 30.0
"""How long a ledger waits for another process that writes to it."""
_ROUNDING = 1e-9  # a tenth, spent ten times, is a budget of one


class BudgetExceeded(ConfigError):
    """The release would pass the cap of its data set. Nothing was spent and nothing may be released."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One release: its time, party, data set, description and cost."""

    number: int
    time: str
    party: str
    dataset: str
    what: str
    event: Entered

    @property
    def private(self) -> bool:
        """Tell whether the entry has a guarantee, and so counts in a sum."""
        return not isinstance(self.event, NotPrivate)


@dataclass(frozen=True, kw_only=True)
class OpenedScores:
    """Scores that were opened together.

    Args:
        shares: digest of the opened shares.
        scores: number of scores for each row.
        key: the linking key that identifies the rows, in words.
        rows: digests of the rows, 8 bytes each.
    """

    shares: str
    scores: int
    key: str
    rows: bytes


@dataclass(frozen=True, kw_only=True)
class Cap:
    """Limit of what may be spent on a data set: epsilon at delta."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.delta != 0:
            check_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Budget of a data set before and after a run: the epsilons of its entries, at ``delta``."""

    dataset: str
    spent: float
    after: float
    cap: Cap | None
    unit: Unit = "label"
    delta: float = 0.0

    @property
    def fits(self) -> bool:
        """Tell whether the cap allows the run."""
        return self.cap is None or self.after <= self.cap.epsilon * (1 + _ROUNDING)

    def describe(self) -> str:
        """Return what is spent, what will be spent after the run, and the cap."""
        cap = "no cap" if self.cap is None else f"cap {self.cap.epsilon:.6g}"
        at = f" at delta {self.delta:g}" if self.delta else ""
        spent = f"{self.spent:.6g} spent, {self.after:.6g} after this run"
        return f"{self.epsilon_of} of data set {self.dataset!r}: {spent}, {cap}{at}"

    @property
    def epsilon_of(self) -> str:
        """Say what is added up."""
        return _EPSILON_OF[self.unit]


_EPSILON_OF: Mapping[Unit, str] = {
    "label": "label-DP epsilon",
    "key": "epsilon of linking keys",
    "record": "epsilon of records",
}


def outlook(dataset: str, spent: Sequence[Entered], more: Sequence[Event], *, cap: Cap | None) -> Outlook:
    """Say what a data set's budget would be with ``more`` events, without spending them.

    Releases without a guarantee are not in any sum. The sums are at the cap's delta; without a cap at 0, or at the usual delta if
    0 bounds nothing.
    """
    spent = [event for event in spent if not isinstance(event, NotPrivate)]
    together = [*spent, *more]
    delta = cap.delta if cap is not None else 0.0 if math.isfinite(total_epsilon(together)) else USUAL_DELTA
    return Outlook(
        dataset=dataset,
        spent=total_epsilon(spent, delta=delta),
        after=total_epsilon(together, delta=delta),
        cap=cap,
        unit=more[0].unit if more else "label",
        delta=delta,
    )


class Ledger:
    """One party's ledger file. Several processes and threads may use it at the same time.

    Guarantee: the total covers every private release whose ``spend`` returned, after any crash. Releases without a guarantee are
    listed separately (``not_private``), because no sum can include them. Not protected: a file that is replaced by an older copy
    of itself looks like an earlier state to anyone who noted no later ``head``, and caps are outside the chain of hashes. Keep it
    where only the party's own jobs can write.

    Raises StorageError for a file that is gone, cut short or not a ledger, or whose entries were altered. Recovery: restore a
    copy taken after the last release, or treat the budget of all its data sets as used up and start a new file for new ones.
    """

    def __init__(self, path: Path | str, *, party: str) -> None:
        self.path = Path(path)
        self.party = party
        require_locks(self.path.parent)
        with self._transaction() as connection:
            self._check(connection)
            self.identity: str = connection.execute("SELECT identity FROM head").fetchone()[0]

    @classmethod
    def create(cls, path: Path | str, *, party: str) -> "Ledger":
        """Make an empty ledger that appears completely or not at all. If two processes try, only one succeeds.

        The chain of hashes begins with the identity, which is drawn here, so two ledgers never share an entry. Raises ConfigError
        if the file exists, StorageError if that fails.
        """
        path = Path(path)
        identity = f"ledger-{secrets.token_hex(16)}"
        try:
            make_folders(path.parent)
            require_locks(path.parent)
            with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                fresh = Path(folder) / "fresh"
                os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                connection = sqlite3.connect(fresh)
                try:
                    # No WAL: a WAL that is cut short silently loses its last commits; a database file that is cut short is
                    # refused.
                    connection.execute("PRAGMA synchronous=EXTRA")
                    connection.executescript(_SCHEMA)
                    connection.execute("INSERT INTO head VALUES (1, ?, 0, ?)", (identity, identity))
                    connection.commit()
                finally:
                    connection.close()
                os.link(fresh, path)
                sync_folder(path.parent)
        except FileExistsError:
            raise ConfigError(f"{path} exists already; a ledger is created once and then kept") from None
        except StorageError:
            raise
        except (OSError, sqlite3.Error) as error:
            raise StorageError(
                f"the privacy ledger {path} cannot be created: {error}; free some space there, or give a folder "
                "that can be written"
            ) from error
        return cls(path, party=party)

    def head(self) -> tuple[int, str]:
        """Return the number of entries and the current hash of the chain. Note both to recognise this state later."""
        with self._transaction() as connection:
            entries, chain = connection.execute("SELECT entries, chain FROM head").fetchone()
        return entries, chain

    def holds(self, entries: int, chain: str) -> bool:
        """Tell whether this ledger has a noted head, or has grown from it. An older copy has not."""
        with self._transaction() as connection:
            row = connection.execute("SELECT chain FROM entries WHERE id = ?", (entries,)).fetchone()
        return (row[0] if row is not None else self.identity if entries == 0 else None) == chain

    def bind(self, name: str, digest: str | None) -> str | None:
        """Return the digest of a secret on which charges here rely. If there is none yet, bind ``digest`` permanently.

        It is outside the chain of hashes. It identifies the right file, and does not prove that nobody changed it.
        """
        with self._transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bound (name TEXT PRIMARY KEY, digest TEXT NOT NULL)")
            if digest is not None:
                connection.execute("INSERT OR IGNORE INTO bound VALUES (?, ?)", (name, digest))
            row = connection.execute("SELECT digest FROM bound WHERE name = ?", (name,)).fetchone()
        return row[0] if row is not None else None

    def hold(self, name: str, token: str, successor: str) -> bool:
        """Tell whether this token is the last one under a name, and replace it by its successor if so. The first token is
        accepted.

        If something that was charged once is copied, both copies have the same token, and only one of them can go on with it.
        Tokens are outside the chain of hashes.
        """
        with self._transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS held (name TEXT PRIMARY KEY, token TEXT NOT NULL)")
            connection.execute("INSERT OR IGNORE INTO held VALUES (?, ?)", (name, token))
            is_last = connection.execute("UPDATE held SET token = ? WHERE name = ? AND token = ?", (successor, name, token))
            return is_last.rowcount == 1

    def enter_scores(self, dataset: str, opened: OpenedScores, *, judge: Callable[[Sequence[OpenedScores]], str]) -> None:
        """Record scores that are about to be opened. The same scores count once.

        Args:
            dataset: the rows that are counted, under any name that a contract gives the party.
            opened: the scores that will be opened.
            judge: given the scores opened before, returns the description of the entry, which is recorded as not private; or it
                raises, and nothing is entered. No other process enters anything meanwhile.
        """
        with self._transaction() as connection:
            self._check(connection)
            before = _opened(connection, dataset)
            if opened not in before:
                what = judge(before)
                row = (dataset, opened.shares, opened.scores, opened.key, opened.rows)
                connection.execute("INSERT INTO opened VALUES (?, ?, ?, ?, ?)", row)
                self._enter(connection, dataset, NotPrivate(), what)

    def scores(self, dataset: str) -> list[OpenedScores]:
        """List the opened scores, under any name of this party."""
        with self._transaction() as connection:
            self._check(connection)
            return _opened(connection, dataset)

    def forget_rows(self, rows_N: NDArray[np.int64]) -> None:
        """Remove rows from the opened scores, in all data sets, by their digests.

        The entries stay. They name no row.
        """
        with self._transaction() as connection:
            self._check(connection)
            connection.execute(_OPENED)
            connection.execute("PRAGMA secure_delete=ON")  # otherwise the old digests stay in the file's free pages
            for number, digests in connection.execute("SELECT rowid, rows FROM opened").fetchall():
                opened_R = np.frombuffer(digests, dtype=np.int64)
                remaining = opened_R[~np.isin(opened_R, rows_N)].tobytes()
                connection.execute("UPDATE opened SET rows = ? WHERE rowid = ?", (remaining, number))

    def enter_not_private(self, dataset: str, *, what: str) -> Entry:
        """Record a release without any guarantee, before it is sent. No cap can judge it, and no sum will count it."""
        with self._transaction() as connection:
            self._check(connection)
            return self._enter(connection, dataset, NotPrivate(), what)

    def take_back(self, dataset: str, event: UnsentGaussianDP, *, what: str) -> Entry:
        """Record that some charged releases were never made, and never will be. No sum counts them any longer.

        Raises StorageError if fewer releases of that noise were charged.
        """
        with self._transaction() as connection:
            self._check(connection)
            outstanding = 0
            for each in (entry.event for entry in self._entries(connection, dataset)):
                if isinstance(each, GaussianDP | UnsentGaussianDP) and (each.noise_multiplier, each.unit) == (
                    event.noise_multiplier,
                    event.unit,
                ):
                    outstanding += each.releases if isinstance(each, GaussianDP) else -each.releases
            if event.releases > outstanding:
                raise StorageError(
                    f"the privacy ledger {self.path} holds {outstanding} releases of this noise on data set {dataset!r}, so "
                    f"{event.releases} cannot have been left out; is it the ledger that they were charged to?"
                )
            return self._enter(connection, dataset, event, what)

    def spend(self, dataset: str, event: Event, *, what: str) -> Entry:
        """Record a release before it is made.

        Return when the entry is on disk. Raises BudgetExceeded if it would exceed the cap. Any cap refuses a release without a
        guarantee.
        """
        with self._transaction() as connection:
            self._check(connection)
            cap = self._cap(connection, dataset)
            if cap is not None and isinstance(event, NotPrivate):
                raise BudgetExceeded(
                    f"{what} on data set {dataset!r} has no guarantee, so no epsilon bounds it, and {self.party} has a cap of "
                    f"{cap.epsilon:.6g}; release it with noise, or not at all"
                )
            if cap is not None:
                budget = outlook(dataset, [entry.event for entry in self._entries(connection, dataset)], [event], cap=cap)
                if not budget.fits:
                    raise BudgetExceeded(
                        f"{what} on data set {dataset!r} would bring {self.party}'s {budget.epsilon_of} from {budget.spent:.6g} "
                        f"to {budget.after:.6g} at delta {cap.delta:g}, over the cap of {cap.epsilon:.6g}; "
                        "raise the cap, release with a smaller epsilon, or not at all"
                    )
            return self._enter(connection, dataset, event, what)

    def _enter(self, connection: sqlite3.Connection, dataset: str, event: Entered, what: str) -> Entry:
        number, chain = connection.execute("SELECT entries + 1, chain FROM head").fetchone()
        entry = Entry(number=number, time=_now(), party=self.party, dataset=dataset, what=what, event=event)
        row = (number, entry.time, entry.party, dataset, what, msgspec.json.encode(event).decode())
        link = _link(chain, row)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, link))
        connection.execute("UPDATE head SET entries = ?, chain = ?", (number, link))
        return entry

    def total(self, dataset: str, *, delta: float = 0.0, unit: Unit = "label") -> float:
        """Return the epsilon that private releases spent on a data set, at ``delta``.

        It is infinite if there is no such bound.
        """
        return total_epsilon([entry.event for entry in self.entries(dataset) if entry.private], delta=delta, unit=unit)

    def not_private(self, dataset: str | None = None) -> list[Entry]:
        """List the releases without a guarantee, oldest first. No total counts them."""
        return [entry for entry in self.entries(dataset) if not entry.private]

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """List the releases, oldest first, under any name that a contract gives the party."""
        with self._transaction() as connection:
            self._check(connection)
            return self._entries(connection, dataset)

    def cap(self, dataset: str) -> Cap | None:
        """Return the cap of a data set, or None."""
        with self._transaction() as connection:
            return self._cap(connection, dataset)

    def set_cap(self, dataset: str, cap: Cap) -> None:
        """Set the cap from now on. Earlier caps stay on record."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO caps (time, party, dataset, epsilon, delta) VALUES (?, ?, ?, ?, ?)",
                (_now(), self.party, dataset, cap.epsilon, cap.delta),
            )

    def export(self, *, delta: float = 1e-6) -> ExportedLedger:
        """Return everything as plain data for JSON: releases without a guarantee, then for each data set its cap, totals and
        private releases.

        ``spent`` and the running totals are at the cap's delta; without a cap at 0, or at ``delta`` if 0 bounds nothing. An
        infinite total is None.
        """
        private: dict[str, list[Entry]] = {}
        for entry in self.entries():
            if entry.private:
                private.setdefault(entry.dataset, []).append(entry)
        datasets: dict[str, ExportedDataset] = {}
        for name, entries in private.items():
            cap = self.cap(name)
            events = [entry.event for entry in entries]
            at = cap.delta if cap else 0.0 if math.isfinite(total_epsilon(events)) else delta
            running = [json_number(total_epsilon(events[:count], delta=at)) for count in range(1, len(events) + 1)]
            datasets[name] = {
                "cap": {"epsilon": cap.epsilon, "delta": cap.delta} if cap else None,
                "spent": {"epsilon": running[-1], "delta": at},
                "epsilon_of": next(_EPSILON_OF[event.unit] for event in events if not isinstance(event, NotPrivate)),
                "label_epsilon": json_number(total_epsilon(events)),
                "label_epsilon_at_delta": json_number(total_epsilon(events, delta=delta)),
                "record_epsilon": json_number(total_epsilon(events, unit="record")),
                "running_label_epsilon": running,
                "entries": [
                    {"number": entry.number, "time": entry.time, "what": entry.what, "event": msgspec.to_builtins(entry.event)}
                    for entry in entries
                ],
            }
        return {
            "party": self.party,
            "identity": self.identity,
            "delta": delta,
            "not_private": [
                {"number": entry.number, "time": entry.time, "dataset": entry.dataset, "what": entry.what}
                for entry in self.not_private()
            ],
            "datasets": datasets,
        }

    def _entries(self, connection: sqlite3.Connection, dataset: str | None) -> list[Entry]:
        rows = connection.execute(
            "SELECT id, time, party, dataset, what, event FROM entries WHERE ? IS NULL OR dataset = ? ORDER BY id",
            (dataset, dataset),
        )
        return [
            Entry(
                number=number,
                time=time,
                party=party,
                dataset=dataset_of_row,
                what=what,
                event=msgspec.json.decode(event, type=prepared(Entered)),
            )
            for number, time, party, dataset_of_row, what, event in rows
        ]

    def _cap(self, connection: sqlite3.Connection, dataset: str) -> Cap | None:
        row = connection.execute(
            "SELECT epsilon, delta FROM caps WHERE dataset = ? ORDER BY id DESC LIMIT 1",
            (dataset,),
        ).fetchone()
        if row is None:
            return None
        try:
            return Cap(epsilon=row[0], delta=row[1])
        except (TypeError, ConfigError):  # caps are outside the chain of hashes
            raise self._broken(f"the cap of data set {dataset!r} is not a valid number") from None

    def _check(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0] != 2:
            raise self._broken("it is not a ledger of this version")
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise self._broken(str(problem))
        count, head, chain = connection.execute("SELECT entries, chain, identity FROM head").fetchone()
        entry_count = 0
        for row in connection.execute("SELECT id, time, party, dataset, what, event, chain FROM entries ORDER BY id"):
            entry_count += 1
            chain = _link(chain, row[:6])
            if row[0] != entry_count or row[6] != chain:
                raise self._broken(f"entry {entry_count} is not the one that was written")
        if (entry_count, chain) != (count, head):
            raise self._broken(f"it holds {entry_count} entries where {count} were written")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # mode=rw never creates: a ledger that disappeared must not come back empty.
        try:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT_S, isolation_level=None
            )
        except sqlite3.Error as error:
            raise self._broken(str(error)) from error
        try:
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")  # an error before this leads to close(), which rolls back
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise self._broken(str(error)) from error
        finally:
            connection.close()

    def _broken(self, why: str) -> StorageError:
        return StorageError(
            f"the privacy ledger {self.path} cannot be used: {why}. Nothing was spent and nothing may be released from its data "
            "sets. Restore a copy taken after the last release, or treat their budget as used "
            "up and start a new ledger file for new data sets"
        )


def json_number(value: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _opened(connection: sqlite3.Connection, dataset: str) -> list[OpenedScores]:
    connection.execute(_OPENED)
    rows = connection.execute("SELECT shares, scores, key, rows FROM opened WHERE dataset = ?", (dataset,))
    return [OpenedScores(shares=shares, scores=scores, key=key, rows=digests) for shares, scores, key, digests in rows]


def _link(chain: str, row: tuple[int, str, str, str, str, str]) -> str:
    return hashlib.sha256(json.dumps([chain, *row]).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
