"""If a partner is killed, stopped, slow or restarted, every request still has an answer in time, and joint scores come back."""

import os
import signal
import time
from contextlib import contextmanager

import pytest
from serving_job import Served, clients, predicted
from tiny import contract_values, lay_out, within

DEADLINE_MS = 400.0
JOINT, ALONE = "joint model", "own columns"


@contextmanager
def load(served, ids):
    """Ask all the time from two threads. Collect (status, scored by, seconds)."""
    came = []

    def ask(client, number, over):
        while not over.is_set():
            began = time.monotonic()
            response = client.post("/v1/score", json={"rows": [{"id": ids[number % len(ids)]}]})
            by = response.json()["scores"][0]["scored_by"] if response.status_code == 200 else response.text
            came.append((response.status_code, by, time.monotonic() - began))
            number += 2

    with clients(served, 2, ask):
        yield came


def scored_by(came, name, seconds=60):
    """Wait until some more answers are all by this model."""
    before = len(came)
    return within(seconds, lambda: len(came) > before + 20 and all(by == name for _, by, _ in came[-15:]))


@pytest.fixture
def both(trained):
    job, expected = trained
    served = Served(job, way="key", deadline_ms=DEADLINE_MS)
    served.start().until_ready()
    yield served, expected.filter(expected["scored_by"] == JOINT)["id"].to_list()
    served.close()


def test_a_partner_that_is_killed_and_started_again_costs_no_request(both):
    served, ids = both
    with load(served, ids) as came:
        assert scored_by(came, JOINT)
        served.running["shop"].kill()
        assert scored_by(came, ALONE)
        served.start("shop")
        assert scored_by(came, JOINT, 120)
    assert {status for status, _, _ in came} == {200}
    assert sorted(seconds for _, _, seconds in came)[-3] < 2 * DEADLINE_MS / 1000  # enough for a busy machine


@pytest.mark.long
def test_a_partner_that_is_stopped_for_less_and_for_more_than_the_sessions_deadline(both):
    served, ids = both
    pid = served.running["shop"].process.pid
    with load(served, ids) as came:
        for stopped_s in (1.0, 6.0):
            assert scored_by(came, JOINT, 120)
            os.kill(pid, signal.SIGSTOP)
            assert scored_by(came, ALONE)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
        assert scored_by(came, JOINT, 120)
    assert {status for status, _, _ in came} == {200}


@pytest.mark.long
def test_a_label_party_that_is_killed_and_started_again_is_found_by_its_partner(both):
    served, ids = both
    assert served.ask({"id": ids[0]}).json()["scores"][0]["scored_by"] == JOINT
    served.running["bank"].kill()
    served.start("bank").until_ready(seconds=120)
    assert served.ask({"id": ids[0]}).json()["scores"][0]["scored_by"] == JOINT


@pytest.mark.long
def test_an_operator_who_ends_a_side_is_told_so_and_the_other_side_goes_on(both):
    served, ids = both
    os.kill(served.running["shop"].process.pid, signal.SIGTERM)
    assert served.running["shop"].end(30) == 130
    assert within(20, lambda: served.client.get("/readyz").text == "ready, by own columns alone\n")
    assert served.ask({"id": ids[0]}).json()["scores"][0]["scored_by"] == ALONE
    os.kill(served.running["bank"].process.pid, signal.SIGTERM)
    assert served.running["bank"].end(30) == 0


def test_two_servers_of_one_party_a_contract_without_serving_and_options_of_the_other_role_are_refused(trained, lay_out_job):
    job, _ = trained
    served = Served(job, way="key")
    served.job.change("shop", serving={"listen": "127.0.0.1:1", "token_file": "x"})
    shop = job.start("shop", "serve", json=False)
    assert shop.end() == 2
    assert "only bank answers clients; leave it out" in " ".join(shop.said)
    job.change("shop", serving=None)
    other = lay_out_job(serving=None)
    bank = other.start("bank", "serve", json=False)
    assert bank.end() == 2
    assert "allows no serving" in bank.error
    served.close()


@pytest.mark.long
def test_a_row_that_was_asked_for_too_often_today_is_not_asked_for_again(tmp_path):
    values = contract_values(("bank", "shop"), serving={"ways": ["key"], "questions_a_day_per_row": 2})
    job = lay_out(tmp_path, ("bank", "shop"), values)
    job.run_all()
    ids = predicted(job)["id"].to_list()
    served = Served(job)
    try:
        served.start().until_ready()
        assert [served.ask({"id": ids[0]}).status_code for _ in range(4)] == [200, 200, 429, 429]
        assert served.ask({"id": ids[1]}).status_code == 200
        for side in served.running.values():
            side.kill()
        served.start().until_ready(seconds=120)
        assert served.ask({"id": ids[0]}).status_code == 429
        assert served.ask({"id": ids[1]}).status_code == 200
    finally:
        served.close()
