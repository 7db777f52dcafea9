"""Collect requests into batches: while the partners answer one batch, the next one is collected.

If no batch is in flight, a batch is sent at once with the rows collected so far, at most MOST_ROWS; or, if the party file says
so, some milliseconds later, which saves processor time under load. A separate thread asks; the clients of the scores are called
back. A batch is asked of one run and scored by it. If partners answer a batch after its deadline, or are away, wanted rows are
told so at once, until a probe is answered within the deadline, however far away the partners are. The log says when they begin to
be late, and when they have been in time for a while again. A batch that crosses nothing is never followed by a probe, however
long it took here, because a probe would show when a request came.

Shapes: B rows.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.cut.forward import TILE
from tallystick.errors import StoreError
from tallystick.scoring.answering import Gate
from tallystick.scoring.asking import AskedParties, Asking, Refused
from tallystick.scoring.scoring import Columns, ScoringRun
from tallystick.scoring.scoring_messages import ABSENT, HERE, OVER_BUDGET
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables.features import Features

MOST_ROWS = TILE
LOOK_S = 0.2
CALM_S = 10.0
"""Partners must be in time for so many seconds before the log says that they are, so that rare delays give one line."""
FIRST_PROBE_S, LAST_PROBE_S = 0.05, 1.0

Why = Literal["joint", "unknown", "absent", "budget", "store", "away"]
"""Why a row has a joint score or none: this side does not know the key; a partner has no row; a partner's budget; this side's
store fails; any other reason.
"""
_WHY: dict[int, Why] = {ABSENT: "absent", HERE: "joint", OVER_BUDGET: "budget"}


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of a batch: its beginning and end by the monotonic clock, and the seconds that the partners took."""

    began: float
    ended: float
    asked_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of rows: a joint score for each, NaN if ``why_B`` says that there is none."""

    why_B: list[Why]
    scores: Columns
    times: Times | None = None

    @classmethod
    def without(cls, rows: int, why: Why) -> "Outcome":
        """Return an outcome without scores."""
        return cls(why_B=[why] * rows, scores={})


@dataclass(frozen=True, kw_only=True)
class PendingRows:
    """Rows of one request, at most MOST_ROWS.

    Args:
        run: the run that must score them.
        keys: normalised keys.
        own: their own columns, encoded for this run, if the request brings them; else they are looked up.
        until: time by the monotonic clock after which nobody waits for them.
        done: called once, from the batching thread.
    """

    run: ScoringRun
    keys: Sequence[bytes]
    own: Features | None
    until: float
    done: Callable[[Outcome], None]


class Batcher:
    """A collector of wanted rows, which has them scored while sessions exist.

    Args:
        gate: budgets and the journal of this side, asked before a partner is.
        patience_s: seconds after which an unanswered batch counts as late.
        most_waiting: most rows that may wait.
        gather_s: seconds that a batch with room waits for more rows before it is sent; 0 sends at once.
        crosses: whether anything crosses for a request; if not, the partners' state says nothing about a batch.
        observe: called for each batch with its rows, its seconds, and the seconds of it that the partners took.
        say: called when partners begin to be late, and when they are in time again.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        patience_s: float,
        most_waiting: int,
        gather_s: float = 0.0,
        crosses: bool = True,
        observe: Callable[[int, float, float], None],
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._gate, self._patience_s, self._observe, self._crosses = gate, patience_s, observe, crosses
        self._say, self._said_late, self._said_refusal = say, False, ""
        self._last_late = self._took_s = 0.0
        self._most_waiting, self._gather_s = most_waiting, gather_s
        self._waiting: deque[PendingRows] = deque()
        self._rows_waiting = 0
        self._news = threading.Condition()
        self._standing = False
        self._late_since: float | None = None
        self._flight_until = math.inf
        self._beside_until = math.inf

    # For clients that want scores, in any thread

    @property
    def full(self) -> bool:
        """Tell whether the queue of rows is full."""
        return self._rows_waiting >= self._most_waiting

    @property
    def ready(self) -> bool:
        """Tell whether partners answer, as far as this side knows."""
        if not self._crosses:  # a batch that takes long here says nothing about the partners
            return self._standing
        return self._standing and self._late_since is None and time.monotonic() <= min(self._flight_until, self._beside_until)

    def want(self, rows: PendingRows) -> None:
        """Have rows scored. Rows that cannot be scored are told so at once."""
        if not self.ready:
            rows.done(Outcome.without(len(rows.keys), "away"))
            return
        with self._news:
            self._waiting.append(rows)
            self._rows_waiting += len(rows.keys)
            self._news.notify()

    # For a thread that asks the partners for something else

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Count another thread's question to the partners as a batch that may be late, if requests need the partners."""
        if not self._crosses:
            yield
            return
        began = time.monotonic()
        self._beside_until = began + self._patience_s
        try:
            yield
        finally:
            self._beside_until = math.inf
        self._judge(time.monotonic() - began)

    # The batching thread

    def serve(
        self,
        askings: Mapping[str, Asking],
        partners: AskedParties,
        stopped: Callable[[], bool],
        *,
        between: Callable[[bool], bool] = lambda _is_idle: False,
    ) -> None:
        """Score wanted rows until ``stopped``. Raises what a channel raises, after all waiting clients were told.

        Args:
            askings: how each run's rows are asked for; ``between`` may change the runs.
            partners: the partners that are asked.
            stopped: called between two batches.
            between: called between two batches, with whether nothing waits; its time counts as a batch that may be late. Returns
                whether there is more to do.
        """
        self._standing, self._late_since = True, None
        more = False
        wait_s = FIRST_PROBE_S
        try:
            while not stopped():
                if self._late_since is not None and not self._said_late:
                    self._said_late = True
                    self._say(
                        f"the partners are late: an answer took {1000 * self._took_s:.0f} ms, and serving.deadline_ms is "
                        f"{1000 * self._patience_s:g}; rows have no joint scores while they are"
                    )
                elif self._late_since is None and self._said_late and time.monotonic() - self._last_late > CALM_S:
                    self._said_late = False
                    self._say(f"the partners have answered in time for {CALM_S:g} s again")
                if self._late_since is not None:
                    self._give_up()
                    time.sleep(wait_s)
                    probed = time.monotonic()
                    partners.probe()
                    took_s = time.monotonic() - probed
                    if took_s <= self._patience_s:
                        self._late_since = None
                    else:
                        self._last_late, self._took_s = time.monotonic(), took_s
                    wait_s = min(2 * wait_s, LAST_PROBE_S)
                    continue
                wait_s = FIRST_PROBE_S
                batch = self._take(0 if more else LOOK_S)
                if batch:
                    self._score(batch, askings.get(batch[0].run.run_id))
                else:
                    for channel in partners.channels:
                        channel.check()
                # The partners are waited for between batches as well; they are late if that takes longer than a batch may
                began = time.monotonic()
                self._flight_until = began + self._patience_s
                try:
                    more = between(not self._waiting)
                finally:
                    self._flight_until = math.inf
                self._judge(time.monotonic() - began)
        finally:
            self._standing = False
            self._give_up()

    def _take(self, wait_s: float) -> list[PendingRows]:
        """Take waiting rows of the first one's run, as far as they fit into one batch and a client still waits for them."""
        batch: list[PendingRows] = []
        with self._news:
            if not self._waiting:
                self._news.wait(wait_s)
            has_room = 0 < self._rows_waiting < MOST_ROWS
        if has_room and self._gather_s:
            time.sleep(self._gather_s)
        with self._news:
            rows, now = 0, time.monotonic()
            left_waiting: list[PendingRows] = []
            while self._waiting and rows + len(self._waiting[0].keys) <= MOST_ROWS:
                next_rows = self._waiting.popleft()
                if batch and next_rows.run is not batch[0].run:
                    left_waiting.append(next_rows)
                    continue
                self._rows_waiting -= len(next_rows.keys)
                if next_rows.until > now:
                    batch.append(next_rows)
                    rows += len(next_rows.keys)
            self._waiting.extendleft(reversed(left_waiting))
        return batch

    def _judge(self, took_s: float) -> None:
        """Note that the partners took too long."""
        if took_s > self._patience_s and self._crosses:
            self._late_since = self._last_late = time.monotonic()
            self._took_s = took_s

    def _tell_refusal(self, text: str) -> None:
        """Report once why a partner refuses to answer, until it answers again."""
        if text and text != self._said_refusal:
            self._say(f"{text}: it answers no rows of this run; its log says why")
        self._said_refusal = text

    def _score(self, batch: Sequence[PendingRows], asking: Asking | None) -> None:
        began, run = time.monotonic(), batch[0].run
        self._flight_until = began + self._patience_s
        keys = [key for wanted in batch for key in wanted.keys]
        outcome, asked_s = Outcome.without(len(keys), "away"), 0.0
        if asking is None:  # the run was released, and nobody waits any more
            self._flight_until = math.inf
            _tell(batch, outcome)
            return
        try:
            is_known_B, own_K, otherwise = self._own(batch, keys)
            why_B: list[Why] = ["budget" if is_known else otherwise for is_known in is_known_B]
            known_keys = keys if is_known_B.all() else [key for key, is_known in zip(keys, is_known_B, strict=True) if is_known]
            is_allowed_K = self._gate.allowed(known_keys, run=run.run_id) if known_keys else np.zeros(0, dtype=np.bool_)
            if not is_allowed_K.all():
                known_keys = [key for key, is_allowed in zip(known_keys, is_allowed_K, strict=True) if is_allowed]
                is_known_B[is_known_B] = is_allowed_K
                own_K = own_K.rows(_index(is_allowed_K)) if own_K is not None else None
            scores: Columns = {name: np.full(len(keys), np.nan, dtype=np.float32) for name in run.scorer.names}
            if known_keys:
                before = time.monotonic()
                try:
                    answered = asking(known_keys, own_K)
                except Refused:
                    asked_s = time.monotonic() - before
                    raise
                asked_s = answered.waited_s
                place_K = np.flatnonzero(is_known_B)
                for place, state in zip(place_K.tolist(), answered.state_B.tolist(), strict=True):
                    why_B[place] = _WHY[state]
                place_E = place_K[answered.is_here]
                if len(place_E):
                    own_E = own_K.rows(_index(answered.is_here)) if own_K is not None else None
                    for name, values_E in run.scorer.joint(answered.cuts_ED, own_E).items():
                        scores[name][place_E] = values_E
                        for place in place_E[~np.isfinite(values_E)].tolist():
                            why_B[place] = "away"  # embeddings that overflow do not count as an answer
            outcome = Outcome(why_B=why_B, scores=scores)
            self._tell_refusal("")
        except Refused as error:  # for example, a partner's store is away: the next batch asks again
            self._tell_refusal(str(error))
        finally:  # however a batch ends, all who wait for it are told
            ended = time.monotonic()
            self._judge(asked_s)
            self._flight_until = math.inf
            self._observe(len(keys), ended - began, asked_s)
            _tell(batch, replace(outcome, times=Times(began=began, ended=ended, asked_s=asked_s)))

    def _own(self, batch: Sequence[PendingRows], keys: Sequence[bytes]) -> tuple[NDArray[np.bool_], Features | None, Why]:
        """Return which rows this side knows, their columns (from the request or the store), and why it lacks the others."""
        keys_asked = [key for wanted in batch if wanted.own is None for key in wanted.keys]
        if not keys_asked:
            brought = Features.stacked([wanted.own for wanted in batch if wanted.own is not None])
            return np.ones(len(keys), dtype=np.bool_), brought, "unknown"
        otherwise: Why = "unknown"
        try:
            rows_found = batch[0].run.store.find(keys_asked)
        except StoreError:  # rows that came with their columns still have joint scores
            rows_found, otherwise = StoredRows(is_found_B=np.zeros(len(keys_asked), dtype=np.bool_), features_E=None), "store"
        if len(keys_asked) == len(keys):
            return rows_found.is_found_B, rows_found.features_E, otherwise
        is_known, parts, looked, rows_taken = [], [], 0, 0
        for wanted in batch:
            if wanted.own is not None:
                is_known.append(np.ones(len(wanted.keys), dtype=np.bool_))
                parts.append(wanted.own)
                continue
            is_found = rows_found.is_found_B[looked : looked + len(wanted.keys)]
            looked += len(wanted.keys)
            is_known.append(is_found)
            if rows_found.features_E is not None:
                parts.append(rows_found.features_E.rows(_index(np.ones(int(is_found.sum()), dtype=np.bool_)) + rows_taken))
                rows_taken += int(is_found.sum())
        return np.concatenate(is_known), Features.stacked(parts) if parts else None, otherwise

    def _give_up(self) -> None:
        with self._news:
            waiting, self._rows_waiting = list(self._waiting), 0
            self._waiting.clear()
        for wanted in waiting:
            wanted.done(Outcome.without(len(wanted.keys), "away"))


def _index(is_B: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(np.flatnonzero(is_B))


def _tell(batch: Sequence[PendingRows], outcome: Outcome) -> None:
    """Give each request the part of its own rows."""
    start = 0
    for wanted in batch:
        rows = slice(start, start + len(wanted.keys))
        start = rows.stop
        scores = {name: values[rows] for name, values in outcome.scores.items()}
        wanted.done(Outcome(why_B=outcome.why_B[rows], scores=scores, times=outcome.times))
