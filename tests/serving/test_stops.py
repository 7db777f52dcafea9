"""A stop ends a side that serves, whatever it waits for. A partner that swallows an answer is given up."""

import os
import re
import signal
import time

import pytest
from serving_job import Served
from tiny import within

from tallystick.scoring import answering
from tallystick.scoring.scoring_messages import RowQuestion
from tallystick.serving import feature_party

END_S = 30.0
"""The page says 12 seconds; a busy machine has more."""
STOPS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]


class _Swallowing:
    """A channel on which some questions arrive and are never answered."""

    def __init__(self, channel, is_swallowed):
        self._channel, self._is_swallowed = channel, is_swallowed

    def __getattr__(self, name):
        return getattr(self._channel, name)

    def receive(self, kind, **more):
        while True:
            message = self._channel.receive(kind, **more)
            if not (isinstance(message, RowQuestion) and self._is_swallowed(message)):
                return message


def swallow_all():
    """Make this process answer no question about rows, as long as it lives."""
    _plant(lambda question: bool(question.keys))


def swallow_once():
    """Make this process swallow its first question about rows."""
    swallowed = []

    def is_first(question):
        if question.keys and not swallowed:
            swallowed.append(question)
            return True
        return False

    _plant(is_first)


def _plant(is_swallowed):
    answer = answering.answer_questions
    feature_party.answer_questions = lambda channel, runs, **more: answer(_Swallowing(channel, is_swallowed), runs, **more)


def ended(process, number, code):
    """Return how many seconds a process took to end after a signal."""
    began = time.monotonic()
    os.kill(process.process.pid, number)
    assert process.end(END_S) == code, process.said
    return time.monotonic() - began


@pytest.fixture
def alone(trained):
    """Start parties one by one."""
    served = Served(trained[0], way="key", deadline_ms=300.0)
    yield served
    served.close()


@pytest.mark.parametrize("number", STOPS)
def test_a_side_that_waits_for_its_partner_ends(number, alone):
    alone.start("bank").until_ready("ready, by own columns alone\n")
    ended(alone.running["bank"], number, 0)
    alone.start("shop")
    shop = alone.running["shop"]
    shop.wait_for(lambda event: "waiting for bank" in str(event))
    ended(shop, number, 130)
    (log,) = (alone.job.home("shop") / "runs" / "serving").glob("*/shop/serving.log")
    assert re.search(r"(?m)^20\d\d-\d\d-\d\dT[\d:.]+\+00:00 waiting for bank", log.read_text())
    assert log.read_text().endswith("interrupted by the operator\n")


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("how", ["swallows", pytest.param("stopped", marks=pytest.mark.long)])
def test_a_side_that_waits_for_an_answer_ends(how, number, trained, alone):
    ids = trained[1]["id"].to_list()
    alone.start("bank")
    alone.running["shop"] = alone.job.start("shop", "serve", json=False, before=swallow_all if how == "swallows" else None)
    alone.until_ready()
    if how == "stopped":
        os.kill(alone.running["shop"].process.pid, signal.SIGSTOP)
    assert alone.ask({"id": ids[0]}).status_code == 200
    ended(alone.running["bank"], number, 0)


def test_a_partner_that_swallows_one_answer_costs_no_request_and_comes_back(trained, alone):
    ids = trained[1].filter(trained[1]["scored_by"] == "joint model")["id"].to_list()
    alone.start("bank")
    alone.running["shop"] = alone.job.start("shop", "serve", json=False, before=swallow_once)
    alone.until_ready()
    first = alone.ask({"id": ids[0]})
    assert first.status_code == 200
    assert first.json()["scores"][0]["scored_by"] == "own columns"
    assert within(60, lambda: alone.ask({"id": ids[0]}).json()["scores"][0]["scored_by"] == "joint model")
    assert any("sent no RowAnswer for 6 s" in str(event) for event in alone.running["bank"].events)


def fail_once():
    """Make this process fail unexpectedly at its first question."""
    asked = []

    def fails(question):
        if question.keys and not asked:
            asked.append(question)
            raise ZeroDivisionError
        return False

    _plant(fails)


def test_a_side_with_a_defect_goes_on_in_a_new_session(trained, alone):
    ids = trained[1].filter(trained[1]["scored_by"] == "joint model")["id"].to_list()
    alone.start("bank")
    alone.running["shop"] = alone.job.start("shop", "serve", json=False, before=fail_once)
    alone.until_ready()
    assert alone.ask({"id": ids[0]}).status_code == 200
    assert within(60, lambda: alone.ask({"id": ids[0]}).json()["scores"][0]["scored_by"] == "joint model")
    assert any(
        "a session failed unexpectedly (ZeroDivisionError in test_stops.py:" in str(e) for e in alone.running["shop"].events
    )
