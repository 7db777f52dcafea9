"""Without cut gradients, over sequences of commands: whatever happens to a training at home, the others hear the same or nothing.

If a training failed or goes on, the label party refuses what it cannot do with that run before it calls anybody.
"""

import polars as pl
import pytest
from sides import PARTIES, Sides
from tiny import tables

from tallystick.errors import StorageError
from tallystick.job import predict as job_predict
from tallystick.run_folder.trained import TrainedLabelParty

GOOD = tables(PARTIES, rows=160)
GOOD["shop"] = GOOD["shop"][:60]
ALIGNED = pl.col("id").is_in(GOOD["shop"]["id"].implode())
TROUBLES = {
    "none": {},
    "one class": {"y": pl.when(ALIGNED).then(0).otherwise(pl.col("y"))},
    "no weight": {"weight": pl.when(ALIGNED).then(0.0).otherwise(pl.col("weight"))},
    "goes on": {},
}


def sequence(sides, trouble):
    """Make a good run, another one with trouble, and do all that may follow. Return bank's error of each step."""
    stop_at = 1 if trouble == "goes on" else None
    sides.tables(GOOD)
    errors = [sides.run()]
    (first,) = sides.runs()
    sides.tables({**GOOD, "bank": GOOD["bank"].with_columns(**TROUBLES[trouble])})
    errors.append(sides.run(stop_at=stop_at))
    second = sides.runs()[0]
    errors += [sides.predict(), sides.serve(), sides.run("resume", resume=True, stop_at=stop_at)]
    sides.promote(first)
    errors += [sides.predict(), sides.serve()]
    sides.promote(second)
    errors += [sides.predict(), sides.serve()]
    sides.tables(GOOD)
    errors.append(sides.predict(run=first))
    sides.roll_back()
    errors += [sides.predict(), sides.serve(), sides.run("start from the first", start_from=first)]
    errors.append(sides.predict(run=sides.runs()[0]))
    return [*errors, sides.run("start from the second", start_from=second)]


@pytest.mark.long
def test_whatever_becomes_of_a_training_others_hear_the_same_or_nothing(tmp_path, monkeypatch):
    """A command that would use the run is refused before anybody is called. Everything else that shop is sent is the same to the
    byte.
    """
    heard, errors = {}, {}
    for trouble in TROUBLES:
        with monkeypatch.context() as patch:
            sides = Sides(tmp_path / trouble, patch, GOOD, training__gradients="none")
            errors[trouble] = sequence(sides, trouble)
        heard[trouble] = sides.heard
    assert errors["none"] == [None] * len(heard["none"])
    steps = [what for what, _ in heard["none"]]
    uncalled = [2, 3, 7, 8, 14]  # predict and serve with the second run, and start from it
    for trouble in set(TROUBLES) - {"none"}:
        assert [what for what, _ in heard[trouble]] == steps
        for number, (what, sent) in enumerate(heard[trouble]):
            assert (sent is None) == (number in uncalled), (trouble, number, what)
            assert sent is None or sent == heard["none"][number][1], (trouble, number, what)
            assert (errors[trouble][number] is None) == (number not in (1, 4, *uncalled))
        assert all("no trained model" in str(errors[trouble][number]) for number in uncalled)


@pytest.mark.parametrize("gradients", ["none", "sent"])
def test_a_prediction_without_gradients_is_over_for_others_before_anything_is_made_of_a_label(gradients, tmp_path, monkeypatch):
    """How long scoring takes, and whether scores can be written, depends on what was learnt from labels, and on who asked."""
    sides = Sides(tmp_path, monkeypatch, GOOD, training__gradients=gradients)
    assert sides.run() is None
    seen = []

    def watched(before):
        def seeing(*arguments, **options):
            seen.append("bank" in sides.left)
            return before(*arguments, **options)

        return seeing

    for of, name in ((TrainedLabelParty, "load"), (job_predict, "write_scores")):
        monkeypatch.setattr(of, name, watched(getattr(of, name)))
    assert sides.predict() is None
    assert seen == [gradients == "none"] * 2

    def full(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(job_predict, "write_scores", full)
    assert "the disk is full" in str(sides.predict())
    assert ("bank" in sides.left) == (gradients == "none")  # a party that has left tells nobody of an error
    assert "shop" not in sides.errors
