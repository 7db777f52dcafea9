"""How a label party asks, over a channel: what crosses, what comes back, and what is refused."""

import threading

import numpy as np
import polars as pl
import pytest
import torch
from listening import Listening
from torch import nn

from tallystick.config.alignment import IntersectionConfig
from tallystick.errors import ProtocolError, StoreError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array
from tallystick.scoring.answering import AnsweringRun, FindByKey, FindByPosition, FindInUnion, answer_questions
from tallystick.scoring.asking import AskAhead, AskByKey, AskByPosition, AskByWindow, Partners, Refused
from tallystick.scoring.scoring_messages import RowAnswer, RowQuestion
from tallystick.scoring.stores.store import StoredRows
from tallystick.scoring.stores.table import Snapshot
from tallystick.tables.encoder import Encoder, FeatureColumns
from tallystick.tables.keys import read_keys

ROWS, WIDTH, RUN = 100, 3, "0123456789abcdef"
KEYS = [b"id-%03d" % number for number in range(ROWS)]


class Bottom(nn.Module):
    """Returns a row's number, so that an answer shows which row it belongs to."""

    width = WIDTH

    def forward(self, features):
        return features.numeric_NF[:, :1].expand(-1, WIDTH).contiguous()


def snapshot():
    frame = pl.DataFrame({"id": [key.decode() for key in KEYS], "x": np.arange(ROWS, dtype=np.float64)})
    alignment = IntersectionConfig.model_validate({"keys": [{"name": "id"}]})
    keys = read_keys(frame, columns={"id": "id"}, alignment=alignment)
    return Snapshot.of(frame, keys, Encoder.fit(frame, FeatureColumns(numeric=("x",)), np.arange(ROWS)))


@pytest.fixture
def partner():
    """Return both ends: partners to ask, and a function that begins to answer by a finder."""
    own, theirs = memory_channels("bank", "shop", timeout_s=20)
    listening = Listening(own)
    partners = Partners(channels=[listening], widths=[WIDTH], run=RUN)
    threads = []

    def answers(finder):
        runs = {RUN: AnsweringRun(bottom=Bottom(), finder=finder)}
        threads.append(threading.Thread(target=answer_questions, args=(theirs, runs)))
        threads[-1].start()
        return partners, listening.sent

    yield answers
    partners.leave()
    for thread in threads:
        thread.join(20)


def expected(rows):
    found = snapshot().find([KEYS[row] for row in rows]).features_E
    return found.numeric_NF[:, :1].expand(-1, WIDTH)


def test_a_question_by_key_tells_keys_and_the_answer_which_rows_there_are(partner):
    partners, sent = partner(FindByKey(store=snapshot()))
    answered = AskByKey(partners=partners)([KEYS[3], b"nobody", KEYS[1]])
    assert answered.is_here.tolist() == [True, False, True]
    assert torch.equal(answered.cuts_ED[0], expected([3, 1]))
    assert set(sent[0].keys) == {KEYS[3], b"nobody", KEYS[1]}
    assert sent[0].positions == ()


ASKED = {
    "key": lambda partners: AskByKey(partners=partners),
    "position": lambda partners: AskByPosition(partners=partners, places={key: place for place, key in enumerate(KEYS)}),
    "window": lambda partners: AskByWindow.of(partners, {key: place for place, key in enumerate(KEYS)}, size=8, secret=bytes(32)),
}


@pytest.mark.parametrize("way", ASKED)
def test_the_order_of_a_request_and_how_often_it_names_a_row_do_not_cross(partner, way):
    """Clients score whole lists, and a list is often sorted by a risk: in its order the places would show each row's rank."""
    partners, sent = partner(FindByKey(store=snapshot()) if way == "key" else FindByPosition(store=snapshot(), key_at=KEYS))
    asking, rng = ASKED[way](partners), np.random.default_rng(2)
    rows = rng.choice(ROWS, size=40, replace=False).tolist()
    for wanted in (rows, rows[::-1], rng.permutation([*rows, *rows[:9]]).tolist()):
        assert torch.equal(asking([KEYS[row] for row in wanted]).cuts_ED[0], expected(wanted))
    assert len({(question.keys, question.positions) for question in sent}) == 1


def test_of_a_key_that_is_not_aligned_nothing_crosses(partner):
    partners, sent = partner(FindByPosition(store=snapshot(), key_at=KEYS))
    asking = AskByPosition(partners=partners, places={key: place for place, key in enumerate(KEYS[:50])})
    answered = asking([KEYS[70], KEYS[20]])
    assert answered.is_here.tolist() == [False, True]
    assert torch.equal(answered.cuts_ED[0], expected([20]))
    assert [question.positions for question in sent] == [(20,)]
    assert asking([KEYS[70]]).is_here.tolist() == [False]
    assert len(sent) == 1


@pytest.mark.parametrize("size", [1, 7, 32, 100])
def test_a_row_is_asked_for_with_the_same_window_whatever_else_is_wanted(partner, size):
    partners, sent = partner(FindByPosition(store=snapshot(), key_at=KEYS))
    places = {key: place for place, key in enumerate(KEYS)}
    asking = AskByWindow.of(partners, places, size=size, secret=bytes(32))
    answered = asking([KEYS[5], b"nobody", KEYS[90], KEYS[5]])
    asking([KEYS[5]])
    asking([KEYS[90]])
    together, first, second = (question.positions for question in sent)
    assert torch.equal(answered.cuts_ED[0], expected([5, 90, 5]))
    assert set(together) == set(first) | set(second)
    assert 5 in first
    assert 90 in second
    assert min(len(first), len(second)) >= size
    assert together == tuple(sorted(together))
    again = AskByWindow.of(partners, dict(reversed(places.items())), size=size, secret=bytes(32))
    assert [positions.tolist() for positions in again.members] == [positions.tolist() for positions in asking.members]


def test_windows_of_more_rows_than_a_question_may_have_are_asked_for_in_several(partner, monkeypatch):
    monkeypatch.setattr("tallystick.scoring.asking.MOST_ASKED", 30)
    partners, sent = partner(FindByPosition(store=snapshot(), key_at=KEYS))
    asking = AskByWindow.of(partners, {key: place for place, key in enumerate(KEYS)}, size=100, secret=bytes(32))
    assert torch.equal(asking([KEYS[77]]).cuts_ED[0], expected([77]))
    assert [len(question.positions) for question in sent] == [30, 30, 30, 10]


def built(building):
    while True:
        try:
            next(building)
        except StopIteration as end:
            return end.value


def test_asked_ahead_a_request_crosses_nothing(partner):
    partners, sent = partner(FindByPosition(store=snapshot(), key_at=KEYS))
    asking = built(AskAhead.building(partners, {key: place for place, key in enumerate(KEYS)}, rows=ROWS))
    before = len(sent)
    answered = asking([KEYS[9], b"nobody"])
    assert answered.is_here.tolist() == [True, False]
    assert torch.equal(answered.cuts_ED[0], expected([9]))
    assert len(sent) == before == 1


class Away:
    blocks = True

    def find(self, _keys):
        raise StoreError("the store is away")

    def close(self):
        pass


class Endless:
    """A store whose row is not finite, as a user's bottom may return."""

    blocks = False

    def find(self, keys):
        found = snapshot().find([KEYS[0]] * len(keys))
        found.features_E.numeric_NF.fill_(float("inf"))
        return StoredRows(is_found_B=found.is_found_B, features_E=found.features_E)

    def close(self):
        pass


@pytest.mark.parametrize("store", [Away(), Endless()])
def test_a_store_that_is_away_or_a_row_that_is_not_finite_is_a_refusal_and_the_next_question_is_answered(partner, store):
    partners, _ = partner(FindByKey(store=store))
    for _ in range(2):
        with pytest.raises(Refused):
            AskByKey(partners=partners)([KEYS[0]])


def test_another_run_than_the_one_that_is_served_is_refused(partner):
    partners, _ = partner(FindByKey(store=snapshot()))
    partners.run = "f" * 16
    with pytest.raises(Refused, match="run"):
        AskByKey(partners=partners)([KEYS[0]])


NONE = Array.of(torch.zeros(0, WIDTH))
WRONG = {
    "another number": RowAnswer(number=7, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(1, WIDTH))),
    "too few rows": RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(0, WIDTH))),
    "another width": RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(1, WIDTH + 1))),
    "not finite": RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.full((1, WIDTH), torch.nan))),
    "unknown state": RowAnswer(number=0, state=Array.of(np.full(1, 9, np.uint8)), values=Array.of(torch.zeros(0, WIDTH))),
    "another type": RowAnswer(number=0, state=Array.of(np.ones(1)), values=Array.of(torch.zeros(1, WIDTH))),
    "more rows": RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(5, WIDTH))),
    "more states": RowAnswer(number=0, state=Array.of(np.ones(2, np.uint8)), values=Array.of(torch.zeros(2, WIDTH))),
    "endless": RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.full((1, WIDTH), torch.inf))),
    "double": RowAnswer(
        number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(1, WIDTH, dtype=torch.float64))
    ),
    "the largest number": RowAnswer(
        number=(1 << 64) - 1, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(1, WIDTH))
    ),
    "another refusal": RowAnswer(number=0, state=Array.of(np.zeros(1, np.uint8)), values=NONE, refusal="later"),
    "nothing": RowAnswer(number=0, state=Array.of(np.zeros(0, np.uint8)), values=Array.of(torch.zeros(0, 0))),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_does_not_fit_the_question_ends_the_session(what):
    own, theirs = memory_channels("bank", "shop", timeout_s=5)
    theirs.send(WRONG[what])
    with pytest.raises(ProtocolError, match="shop"):
        Partners(channels=[own], widths=[WIDTH], run=RUN).ask([((KEYS[0],), ())])


def test_an_answer_that_is_given_twice_is_not_taken_for_the_next_one():
    own, theirs = memory_channels("bank", "shop", timeout_s=5)
    answer = RowAnswer(number=0, state=Array.of(np.ones(1, np.uint8)), values=Array.of(torch.zeros(1, WIDTH)))
    for _ in range(2):
        theirs.send(answer)
    partners = Partners(channels=[own], widths=[WIDTH], run=RUN)
    partners.ask([((KEYS[0],), ())])
    with pytest.raises(ProtocolError, match="to question 0, expected 1"):
        partners.ask([((KEYS[1],), ())])


BY_KEY, BY_POSITION = FindByKey(store=snapshot()), FindByPosition(store=snapshot(), key_at=KEYS)
IN_UNION = FindInUnion(source=None, rows=ROWS)


@pytest.mark.parametrize(
    ("finder", "asked"),
    [
        (BY_POSITION, {"keys": (b"a",)}),
        (BY_POSITION, {"positions": (100,)}),
        (BY_POSITION, {"positions": (0, (1 << 64) - 1)}),
        (BY_POSITION, {"positions": (-1,)}),
        (BY_POSITION, {"positions": (0,) * 1025}),
        (BY_POSITION, {"keys": (KEYS[0],), "positions": (0,)}),
        (BY_KEY, {"positions": (0,)}),
        (BY_KEY, {"keys": (KEYS[0],), "positions": (0,)}),
        (BY_KEY, {"keys": (b"a",) * 1025}),
        (BY_KEY, {"keys": (KEYS[0],), "run": "0" * 17}),
        (BY_KEY, {"number": -1}),
        (IN_UNION, {"positions": (100,)}),
        (IN_UNION, {"keys": (b"a",)}),
    ],
)
def test_a_question_that_was_not_agreed_on_ends_the_session(finder, asked):
    own, theirs = memory_channels("bank", "shop", timeout_s=5)
    own.send(RowQuestion(**{"number": 0, "run": RUN, **asked}))
    own.send(RowQuestion(number=0, last=True))
    with pytest.raises(ProtocolError, match="bank"):
        answer_questions(theirs, {RUN: AnsweringRun(bottom=Bottom(), finder=finder)})


def test_a_row_has_one_budget_by_whichever_way_it_is_asked_for():
    by_key, by_position = RowQuestion(number=0, keys=(KEYS[7],)), RowQuestion(number=0, positions=(7,))
    assert list(BY_KEY.names(by_key, "bank")) == list(BY_POSITION.names(by_position, "bank"))
