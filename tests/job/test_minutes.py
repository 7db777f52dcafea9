"""A time limit in minutes: both parties say that it ended training, and `check` says beforehand what that discloses."""

import tiny

from tallystick.config.contract import parse_contract
from tallystick.disclosure.table import disclosure_lines
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")


class Listening(Silent):
    def __init__(self):
        self.said = []

    def say(self, sentence):
        self.said.append(sentence)


def test_minutes_that_are_over_within_the_first_epoch_are_named():
    watcher = Listening()
    evaluation = {"bootstrap": 0, "own_columns_baseline": False}
    values = tiny.contract_values(PARTIES, training__epochs=40, training__minutes=1e-7, evaluation=evaluation)
    result = simulate(values, tiny.tables(PARTIES, rows=300), tiny.columns(PARTIES), watcher=watcher)
    assert len(result.training.history) == 1
    told = "trained 1 of at most 40 epochs; training.minutes = 1e-07 were over within the first; raise them; the weights of"
    assert sum(told in sentence for sentence in watcher.said) >= 1


def test_what_the_clock_tells_is_disclosed():
    bounded, free = (
        " ".join(disclosure_lines(parse_contract(tiny.contract_values(PARTIES, **more)), own_columns=True))
        for more in ({"training__minutes": 5.0}, {})
    )
    clock = "These bits follow from the validation labels, and the last one from bank's clock (training.minutes)"
    assert (clock in bounded, "clock (training.minutes)" in free) == (True, False)
