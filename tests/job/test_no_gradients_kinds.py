"""Without cut gradients, over several commands: nobody learns that labels failed in a fold or in test rows, nor their numbers."""

import polars as pl
import pytest
from lanes import short_lane_of
from sides import PARTIES, Sides
from tiny import files_of, tables

from tallystick.job.promotion import count_decision, decide_promotion, decide_without_figures
from tallystick.report.compare import read_run
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import known_ledger
from tallystick.tables.split import TEST, folds_by_hash, split_by_hash

CLASSES, NUMBERS = (tables(PARTIES, rows=360, target=target) for target in ("binary", "regression"))
FEW = {**NUMBERS, "shop": NUMBERS["shop"][:80]}


def among(frame, is_wanted):
    """Return the rows of a table with these ids."""
    return pl.col("id").is_in(frame["id"].filter(pl.Series(is_wanted)).implode())


def in_test_rows(frame, contract):
    return among(frame, split_by_hash([each.encode() for each in frame["id"]], contract.split, seed=contract.seed) == TEST)


def in_first_fold(frame, contract):
    """Look at networks of own columns alone: the joint one crosses once, and has no folds."""
    ids, count = [each.encode() for each in frame["id"]], contract.own_folds(frame.height)
    assert count > 1
    return among(frame, folds_by_hash(ids, contract.split, count=count, seed=contract.seed) == 0)


OF_NUMBERS = {"target": {"type": "regression"}}
KINDS = {  # tables, what else the contract has, which rows get one label, and whether only from the second run on
    "one class in the test rows": (CLASSES, {}, in_test_rows, True),
    "one class in a fold": (CLASSES, {"unaligned": {"method": "average"}, "training__folds": "auto"}, in_first_fold, True),
    "a constant number": (FEW, OF_NUMBERS, lambda *_: pl.col("id").is_in(FEW["shop"]["id"].implode()), True),
    "a number corrected before --resume": (NUMBERS, OF_NUMBERS, lambda frame, _: pl.col("id") == frame["id"][3], False),
}


def decide(sides, old, new):
    """Let bank decide between two runs, as `compare --decide` does. Return the content of its ledger after that."""
    contract, party = files_of(sides.job, "bank")
    runs = {folder.run_id: folder for folder in RunFolder.all(party.runs, contract, "bank")}
    results = [read_run(runs[name].path) if runs[name].result.exists() else None for name in (old, new)]
    decision = decide_without_figures(contract, *results) or decide_promotion(*results)
    count_decision(decision, party, runs[new], old=old)
    return [(each.what, each.event) for each in known_ledger(party).entries()]


def sequence(sides, given, troubled, *, early):
    """Make two runs, promote both, and do what may follow. Return bank's error of each step, and its ledger after a decision."""
    sides.tables(given)
    errors = [sides.run()]
    sides.tables(troubled if early else given)
    errors.append(sides.run())
    second, first = sides.runs()
    sides.promote(first)
    sides.promote(second)
    sides.tables(troubled)
    errors += [sides.run("resume", resume=True), sides.predict()]
    ledger = decide(sides, first, second)
    return [*errors, sides.predict(run=first), sides.run("start from the second", start_from=second)], ledger


@pytest.mark.parametrize("kind", short_lane_of(KINDS, 1))
def test_others_hear_the_same_or_nothing_whatever_labels_do(kind, tmp_path, monkeypatch):
    given, changes, which, early = KINDS[kind]
    heard, errors, ledgers = [], [], []
    for name in ("plain", "troubled"):
        with monkeypatch.context() as patch:
            always = {"training__gradients": "none", "training__epochs": 1, "promotion": {"epsilon": 1.0}}
            sides = Sides(tmp_path / name, patch, given, **always, **changes)
            sides.job.change("bank", weight=None)
            contract, _ = files_of(sides.job, "bank")
            same = pl.when(which(given["bank"], contract)).then(given["bank"]["y"].max()).otherwise(pl.col("y"))
            troubled = given["bank"].with_columns(y=same if name == "troubled" else pl.col("y"))
            assert (name == "plain") == troubled.equals(given["bank"])
            found = sequence(sides, given, {**given, "bank": troubled}, early=early)
        heard.append(sides.heard)
        errors.append(found[0])
        ledgers.append(found[1])
    assert errors[0] == [None] * len(heard[0])
    assert ledgers[0] == ledgers[1]
    for (what, before), (_, after), error in zip(*heard, errors[1], strict=True):
        assert after in (before, None), what
        assert (after is None) == ("no trained model" in str(error)), (what, error)
