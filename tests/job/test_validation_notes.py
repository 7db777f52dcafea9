"""A run says if its validation rows can hardly judge: if there are few of them, or only one class."""

import re

import polars as pl
import pytest
import tiny

from tallystick.simulation import simulate

PARTIES = ("bank", "shop")
ROWS, FEW = 400, {"method": "hash", "validation": 0.015, "test": 0.2}
HARDLY = "so they hardly say which weights are good, or when training should end; raise split.validation or set training.epochs"
VALIDATED = {
    "few": ({"split": FEW}, None, rf"validation rows: [1-9] are few, {HARDLY}"),
    "one class": ({}, [1, *[0] * (ROWS - 1)], rf"validation rows: all [2-9]\d are of one class, {HARDLY}"),
    "enough, of both": ({}, None, None),
    "few, but all rows judge one of several networks": ({"split": FEW, "training__folds": 2}, None, None),
}


@pytest.mark.parametrize(("said", "labels", "expected"), VALIDATED.values(), ids=VALIDATED)
def test_validation_rows_that_hardly_judge_are_named(said, labels, expected):
    tables = tiny.tables(PARTIES, rows=ROWS)
    if labels is not None:
        bank = tables["bank"]
        tables["bank"] = bank.with_columns(y=pl.Series(labels[: bank.height]))
    evaluation = {"bootstrap": 0, "own_columns_baseline": False}
    result = simulate(tiny.contract_values(PARTIES, evaluation=evaluation, **said), tables, tiny.columns(PARTIES))
    notes = [note for note in result.data.notes if note.startswith("validation rows")]
    assert len(notes) == (expected is not None)
    assert all(re.fullmatch(expected, note) for note in notes)
