"""Rows gathered into batches: whatever happens to a batch, all who wait for it are told once, each about its own rows."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tallystick.errors import PeerLost, ProtocolError, StoreError
from tallystick.scoring.answering import OPEN
from tallystick.scoring.asking import Answered, Refused
from tallystick.scoring.batching import MOST_ROWS, Batcher, PendingRows
from tallystick.scoring.scoring import ScoringRun
from tallystick.scoring.scoring_messages import HERE
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables.features import Features

RUN = "0123456789abcdef"


class Numbers:
    """A store, and a scorer of its rows: a row's score is its number."""

    blocks, names = False, ("score",)
    away = False

    def find(self, keys):
        if self.away:
            raise StoreError("the store is away")
        known = np.array([key.isdigit() for key in keys])
        return StoredRows(is_found_B=known, features_E=numbers([int(key) for key in keys if key.isdigit()]))

    def joint(self, _cuts, own):
        return {"score": own.numeric_NF[:, 0].numpy()}


class Silent:
    """Partners that are never looked at."""

    channels = ()


def numbers(values):
    return Features(
        numeric_NF=torch.tensor(values, dtype=torch.float32).reshape(-1, 1),
        categorical_NG=torch.empty(len(values), 0, dtype=torch.int64),
    )


def all_here(keys, _own):
    return Answered(state_B=np.full(len(keys), HERE, dtype=np.uint8), cuts_ED=[torch.zeros(len(keys), 1)])


def scored(wanted, *, asking=all_here, away=False, seconds=30.0):
    """Return the outcome of rows that wait when a round begins, in order, and what ended the round."""
    rows, told, ended = Numbers(), [[] for _ in wanted], []
    rows.away = away
    run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
    batcher = Batcher(gate=OPEN, patience_s=seconds, most_waiting=10_000, observe=lambda *_: None)
    batcher._standing = True  # as within a round, so that all wait for one batch
    until = time.monotonic() + seconds
    for (keys, own), outcomes in zip(wanted, told, strict=True):
        batcher.want(PendingRows(run=run, keys=keys, own=own, until=until, done=outcomes.append))

    def work():
        try:
            batcher.serve({RUN: asking}, Silent(), lambda: all(told))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert [len(outcomes) for outcomes in told] == [1] * len(wanted)
    return [outcomes[0] for outcomes in told], ended


def test_each_is_told_of_its_own_rows_over_many_batches():
    wanted = [([b"%d" % number, b"nobody"][: 1 + number % 2], None) for number in range(100)]
    outcomes, _ = scored(wanted)
    for number, outcome in enumerate(outcomes):
        assert outcome.why_B == ["joint", "unknown"][: 1 + number % 2]
        assert outcome.scores["score"][0] == number


def test_no_batch_has_more_rows_than_a_tile():
    sizes = []

    def asking(keys, own):
        sizes.append(len(keys))
        return all_here(keys, own)

    scored([([b"1"] * rows, None) for rows in (1, MOST_ROWS, 20, 13, 12)], asking=asking)
    assert max(sizes) <= MOST_ROWS
    assert sum(sizes) == 1 + MOST_ROWS + 45


def test_where_the_own_store_is_away_rows_that_bring_their_columns_are_scored_all_the_same():
    (looked_up, brought), _ = scored([([b"1"], None), ([b"x", b"y"], numbers([7, 8]))], away=True)
    assert looked_up.why_B == ["store"]
    assert brought.why_B == ["joint", "joint"]
    assert brought.scores["score"].tolist() == [7, 8]


@pytest.mark.parametrize(
    "error", [PeerLost("shop", "gone"), ProtocolError("shop", "not finite"), RuntimeError("a defect"), Refused("shop", "store")]
)
def test_whatever_ends_a_batch_all_who_wait_are_told(error):
    def asking(_keys, _own):
        raise error

    outcomes, ended = scored([([b"1"], None), ([b"2"] * MOST_ROWS, None)], asking=asking)
    assert {why for outcome in outcomes for why in outcome.why_B} == {"away"}
    assert ended == ([] if isinstance(error, Refused) else [error])


@pytest.mark.parametrize("crosses", [True, False], ids=["asked", "ahead"])
def test_who_comes_while_a_batch_is_late_is_told_at_once_if_it_is_the_partners_who_are_late(crosses):
    """If nothing crosses, the next batch scores the row, because only this side was slow."""
    rows, told, late = Numbers(), [], []
    run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
    batcher = Batcher(gate=OPEN, patience_s=0.05, most_waiting=10, crosses=crosses, observe=lambda *_: None)

    def want(told):
        batcher.want(PendingRows(run=run, keys=[b"1"], own=None, until=time.monotonic() + 30, done=told.append))

    def asking(keys, own):
        time.sleep(0.1)
        if not told:
            assert batcher.ready is not crosses
            want(late)
            assert [outcome.why_B for outcome in late] == ([["away"]] if crosses else [])
        return all_here(keys, own)

    batcher._standing = True
    want(told)
    batcher.serve({RUN: asking}, Silent(), lambda: bool(told and late))
    assert told[0].why_B == ["joint"]
    assert [outcome.why_B for outcome in late] == [["away" if crosses else "joint"]]


@pytest.mark.parametrize(
    ("waited_s", "crosses", "probes"), [(0.0, True, 0), (0.2, True, 1), (0.2, False, 0)], ids=["at home", "asked", "ahead"]
)
def test_a_late_batch_is_followed_by_a_probe_only_where_partners_were_late_with_it(waited_s, crosses, probes):
    """A probe leaves: after a batch that was slow only here it would show when a request came."""
    rows, told, probed, ended = Numbers(), [], [], threading.Event()
    batcher = Batcher(gate=OPEN, patience_s=0.1, most_waiting=10, crosses=crosses, observe=lambda *_: None)
    partners = SimpleNamespace(channels=(), probe=lambda: probed.append(True))

    def asking(keys, own):
        time.sleep(0.2)
        return replace(all_here(keys, own), waited_s=waited_s)

    def stopped():
        if told and (probed or not batcher._late_since):
            ended.set()
        return ended.is_set()

    batcher._standing = True
    run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
    batcher.want(PendingRows(run=run, keys=[b"1"], own=None, until=time.monotonic() + 30, done=told.append))
    batcher.serve({RUN: asking}, partners, stopped, between=lambda _: time.sleep(0.2) if not crosses else False)
    assert told[0].why_B == ["joint"]
    assert len(probed) == probes


class Clock:
    """Time that moves when somebody sleeps or asks."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("trip_s", "is_ready"), [(0.01, True), (0.08, True), (0.19, True), (0.21, False)])
def test_partners_that_were_late_once_are_back_with_an_answer_within_the_deadline(trip_s, is_ready, monkeypatch):
    """However far away they are. The log has a line when they begin to be late, and one when they are in time again."""
    clock, said, told, asked = Clock(), [], [], []
    monkeypatch.setattr("tallystick.scoring.batching.time", clock)
    rows = Numbers()
    run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
    batcher = Batcher(gate=OPEN, patience_s=0.2, most_waiting=10, observe=lambda *_: None, say=said.append)
    partners = SimpleNamespace(channels=(), probe=lambda: clock.sleep(trip_s))

    def want():
        batcher.want(PendingRows(run=run, keys=[b"1"], own=None, until=clock.now + 30, done=told.append))

    def asking(keys, own):
        took_s = 0.5 if not asked else trip_s
        asked.append(took_s)
        clock.sleep(took_s)
        return replace(all_here(keys, own), waited_s=took_s)

    rounds = iter(range(200))

    def stopped():
        if next(rounds, None) is None:
            return True
        clock.sleep(0.1)
        if batcher.ready:
            want()
        return False

    batcher._standing = True
    want()
    batcher.serve({RUN: asking}, partners, stopped)
    assert batcher._late_since is None if is_ready else batcher._late_since is not None
    assert len(asked) > 100 if is_ready else len(asked) == 1
    assert said[0].startswith("the partners are late: an answer took 500 ms, and serving.deadline_ms is 200")
    assert said[1:] == (["the partners have answered in time for 10 s again"] if is_ready else [])


def test_a_score_that_is_no_number_is_none_whatever_a_partner_sent():
    """Huge embeddings are finite, and the network's output need not be."""
    (outcome,), ended = scored([([b"x", b"y", b"z"], numbers([float("nan"), 8, float("inf")]))])
    assert outcome.why_B == ["away", "joint", "away"]
    assert not ended


def test_so_many_rows_may_wait_and_no_more():
    rows, told = Numbers(), []
    batcher = Batcher(gate=OPEN, patience_s=1, most_waiting=3, observe=lambda *_: None)
    batcher._standing = True
    for count, is_full in ((2, False), (1, True)):
        run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
        batcher.want(PendingRows(run=run, keys=[b"1"] * count, own=None, until=time.monotonic() + 30, done=told.append))
        assert batcher.full == is_full


@pytest.mark.parametrize(("gather_s", "expected"), [(0.0, [1, 1]), (5.0, [2])])
def test_a_row_waits_for_others_where_it_is_to(gather_s, expected, monkeypatch):
    """The second row comes while the first would wait, by the test's clock."""
    sizes, told, rows = [], [], Numbers()
    run = ScoringRun(run_id=RUN, scorer=rows, store=rows)
    batcher = Batcher(gate=OPEN, patience_s=30, most_waiting=10, gather_s=gather_s, observe=lambda size, *_: sizes.append(size))
    batcher._standing = True

    def want(key):
        batcher.want(PendingRows(run=run, keys=[key], own=None, until=time.monotonic() + 30, done=told.append))

    def pause(seconds):
        assert seconds == gather_s
        want(b"8")

    def asking(keys, own):
        if len(sizes) == 0 and not gather_s:
            want(b"8")
        return all_here(keys, own)

    monkeypatch.setattr("tallystick.scoring.batching.time.sleep", pause)
    want(b"7")
    batcher.serve({RUN: asking}, Silent(), lambda: len(told) == 2)
    assert sizes == expected
    assert sorted(float(outcome.scores["score"][0]) for outcome in told) == [7.0, 8.0]
