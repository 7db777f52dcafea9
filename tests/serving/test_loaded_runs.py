"""Several loaded runs: never more than allowed, none dropped while somebody waits for it, and no endless loading."""

import gc
import random
import weakref

import pytest
from tiny import within

from tallystick.errors import ConfigError
from tallystick.serving import loaded_runs
from tallystick.serving.loaded_runs import MOST_LOADED, LoadedRuns
from tallystick.serving.served_runs import Users


class Run:
    """A run that somebody may wait for."""

    def __init__(self, run_id):
        self.run_id, self.users, self.closed = run_id, Users(), False

    def retire(self):
        return self.users.retire()

    def close(self):
        assert not self.users.any
        self.closed = True


@pytest.fixture
def loading(monkeypatch):
    """Return runs that are loaded by name, all that were loaded, and the lines that were said."""
    monkeypatch.setattr(loaded_runs, "LOOK_S", 0.01)
    every, said = [], []

    def load(run_id):
        if run_id == "none":
            raise ConfigError("there is no such run")
        run = Run(run_id)
        every.append(weakref.ref(run))
        return run

    runs = LoadedRuns(None, load, say=said.append)
    runs.begin(load("0"))
    yield runs, every, said
    runs.close()


def alive(every):
    gc.collect()
    return [run() for run in every if run() is not None]


@pytest.mark.long
def test_after_many_switches_only_the_wanted_runs_are_in_memory(loading):
    runs, every, _ = loading
    draw = random.Random(1)
    for _ in range(30):
        wanted = [str(draw.randrange(9)) for _ in range(MOST_LOADED + 2)]
        runs.want(wanted)
        first = list(dict.fromkeys(wanted))[:MOST_LOADED]
        assert within(10, lambda first=first: {run.run_id for run in runs.loaded} == set(first))
        assert len(alive(every)) <= MOST_LOADED
    assert len(every) > MOST_LOADED


def test_a_run_that_somebody_waits_for_stays_beside_the_others(loading):
    """If another one were loaded later because of it, a partner could see that somebody waits."""
    runs, _, _ = loading
    old = runs["0"]
    assert old.users.come()
    runs.want(["1", "2", "3"])
    assert within(10, lambda: {run.run_id for run in runs.loaded} == {"0", "1", "2", "3"})
    assert not old.closed
    old.users.go()
    assert within(10, lambda: {run.run_id for run in runs.loaded} == {"1", "2", "3"})
    assert old.closed
    assert not old.users.come()


def test_runs_that_somebody_waits_for_without_end_are_no_more_than_twice_those_that_are_wanted(loading):
    runs, _, _ = loading
    for number in range(4 * MOST_LOADED):
        for run in runs.loaded:
            run.users.come()
        runs.want([str(number)])
        is_full = len(runs.loaded) == 2 * MOST_LOADED
        assert is_full or within(10, lambda number=number: str(number) in {run.run_id for run in runs.loaded})
    assert not within(0.1, lambda: len(runs.loaded) != 2 * MOST_LOADED)
    for run in runs.loaded:
        while run.users.any:
            run.users.go()
    assert within(10, lambda: len(runs.loaded) == 1)


def test_a_run_that_cannot_be_loaded_is_said_once_and_not_tried_again_at_once(loading):
    runs, _, said = loading
    runs.want(["0", "none", "1"])
    assert within(10, lambda: {run.run_id for run in runs.loaded} == {"0", "1"})
    assert runs.failed == ("none",)
    runs.want(["0", "none", "1"])
    assert not within(0.1, lambda: len(said) > 1)
    assert said == ["run none cannot be loaded: there is no such run"]


def test_the_run_of_a_new_session_is_loaded_at_once_beside_the_one_that_scores(loading):
    runs, _, _ = loading
    assert runs.require("5", beside=["0"]).run_id == "5"
    assert {run.run_id for run in runs.loaded} == {"0", "5"}
    with pytest.raises(ConfigError):
        runs.require("none")
